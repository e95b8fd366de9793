// SPDX-License-Identifier: Apache-2.0

// ChunkHomes: decides which chunks of a sharded model live on the device and which in host memory.
// This covers shards of parameters, and the data their optimizer works on (masters, states,
// gradients).
//
//   ChunkHomes homes({.placement_policy = PlacementPolicy::kAuto, .device_budget_bytes = 1 << 30},
//                    chunk_bytes, device);
//   ... ShardedParametersOptions{.homes = homes.parameter_homes(), .keep = homes.keep()} ...
//   view.set_state_context(homes.optimizer_home(c));
//   homes.LimitDevice(gathered, gradient);                  // at the end of boost
//   if (homes.is_unsettled()) homes.Settle(parameters, chunks, true);  // after a step; collective
//
// kStatic takes fractions of the bytes of all chunks, rounds them to whole chunks, and never
// changes them.
//
// kAuto keeps everything on the host in the first iteration, which shows how many bytes are
// gathered at a time. Then it moves as many chunks to the device as the budget has room for besides
// those bytes. The room that is left keeps gathered values. The device's ledger refuses allocations
// beyond the budget.
//
// Data on disk is read ahead when a step begins and written back after it has ended.
#ifndef APOGEE_PLUGINS_GEMINI_CHUNK_HOMES_H_
#define APOGEE_PLUGINS_GEMINI_CHUNK_HOMES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/core/device_context.h"
#include "apogee/core/process/file_allocator.h"
#include "apogee/optim/param_view.h"
#include "apogee/plugins/gemini/placement.h"

namespace apogee {

class ChunkHomes {
 public:
  // The data that moves with a chunk.
  struct ChunkData {
    std::vector<optim::ParamView*> views;  // of its items; null: not in the optimizer
    int64_t optimizer_bytes = 0;           // this rank's masters and states, also future ones
    int64_t gradient_bytes = 0;            // this rank's part of the mean
  };

  // `chunk_bytes`: for each chunk, the bytes of its whole values. Makes a host context if anything
  // may live there. Throws Error if no file can be made in nvme_dir.
  ChunkHomes(const PlacementOptions& options, const std::vector<int64_t>& chunk_bytes,
             const ContextPtr& device);

  // For ShardedParametersOptions.
  const std::vector<ContextPtr>& parameter_homes() const { return parameter_homes_; }
  const std::vector<bool>& keep() const { return keep_; }
  const ContextPtr& optimizer_home(size_t chunk) const { return optimizer_homes_[chunk]; }
  // For GradientChunkOptions::context_of: the memory of the optimizer's data. Under a budget it is
  // the device only if `bytes` fit in addition to the values still to be gathered.
  ContextPtr GradientHome(size_t chunk, int64_t bytes, const chunk::GatherSchedule& schedule) const;
  // Null when nothing lives there.
  const ContextPtr& host() const { return host_; }
  const ContextPtr& disk() const { return disk_; }
  // "device", "host" or "disk".
  std::string NameOf(const ContextPtr& home) const;

  // From now on the device keeps to the budget. `gathered_bytes`: the most bytes gathered at a time
  // (ModuleWindows::LargestGatheredBytes). `gradient_bytes`: the bytes of the largest gradient.
  // Throws Error, and sets nothing, if the budget is too small to train.
  void LimitDevice(int64_t gathered_bytes, int64_t gradient_bytes);
  // Whether Settle must still be called: under kAuto, once.
  bool is_unsettled() const { return device_budget_bytes_ != 0 && !settled_; }
  // Between iterations: chooses the chunks to move to the device, moves them and sets the
  // schedule's capacity. If `keep_gathered`, the remaining room may keep gathered values.
  // Collective.
  void Settle(chunk::ShardedParameters& parameters, std::span<const ChunkData> chunks,
              bool keep_gathered);
  // Before and after the optimizer's step. Asynchronous.
  void ReadAhead() const {
    if (file_ != nullptr) file_->ReadAhead();
  }
  void WriteBack() const {
    if (file_ != nullptr) file_->WriteBack();
  }

 private:
  // Moves a chunk's shard and optimizer data.
  void MoveToDevice(chunk::ShardedParameters& parameters, size_t chunk, const ChunkData& data);

  const int64_t device_budget_bytes_;  // 0: none
  ContextPtr device_, host_, disk_;
  FileAllocator* file_ = nullptr;  // disk_'s
  std::vector<ContextPtr> parameter_homes_, optimizer_homes_;
  std::vector<bool> keep_;
  int64_t gathered_bytes_ = 0;  // at a time
  int64_t gradient_bytes_ = 0;  // that backward produces at a time
  int64_t reserved_bytes_ = 0;  // for gathered values
  bool settled_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_CHUNK_HOMES_H_
