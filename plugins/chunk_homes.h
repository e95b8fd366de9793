// SPDX-License-Identifier: Apache-2.0

// ChunkHomes: which chunks of a sharded model live on the device and which on the host: shards of
// parameters, and what their optimizer works on (masters, states, gradients).
//
//   ChunkHomes homes({.placement_policy = "auto", .device_budget_bytes = 1 << 30}, chunk_bytes,
//   device);
//   ... ShardedParametersOptions{.homes = homes.parameter_homes(), .keep = homes.keep()} ...
//   view.set_state_context(homes.optimizer_home(c));
//   homes.LimitDevice(gathered, gradient);      // boost is over
//   if (homes.is_unsettled()) homes.Settle(parameters, chunks, true);   // after a step. Collective
//
// "static": fractions of the bytes of all chunks, rounded to whole chunks, once and for all.
// "auto": everything on the host for the first iteration, which shows the most that is gathered at
// a time; then as many chunks as fit into the budget beside that move to the device, and what is
// left keeps gathered values. The device's ledger refuses what would exceed the budget.
//
// What is on disk is read ahead when a step begins and written behind when it has ended.
#ifndef APOGEE_PLUGINS_CHUNK_HOMES_H_
#define APOGEE_PLUGINS_CHUNK_HOMES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/core/device_context.h"
#include "apogee/core/file_allocator.h"
#include "apogee/optim/param_view.h"

namespace apogee {

struct PlacementOptions {
  // "static" or "auto".
  std::string placement_policy = "static";
  // "static": the part of the parameters that is sharded between uses (the rest is whole from its
  // first use in a step to the step's end), and the parts of optimizer data (masters, states,
  // gradients) and of parameter shards that live in host memory. In whole chunks.
  double shard_param_frac = 1;
  double offload_optim_frac = 0;
  double offload_param_frac = 0;
  // "static": gathered values stay after use, and the next ones are gathered ahead, as long as all
  // that are gathered take no more bytes than this. 0: values are whole while they are used.
  int64_t max_gathered_bytes = 0;
  // "auto": the most bytes of model data on this rank's device.
  int64_t device_budget_bytes = 0;
  // Masters and states that are not on the device lie in a file in this directory (it has no name,
  // and goes with the process), whose pages the operating system reads and writes. Empty: on the
  // host.
  std::string nvme_dir = {};
  friend bool operator==(const PlacementOptions&, const PlacementOptions&) = default;
};

// Adds a line for every option that is wrong to `errors`.
void CheckPlacement(const PlacementOptions& options, std::string& errors);

class ChunkHomes {
 public:
  // What moves with a chunk.
  struct ChunkData {
    std::vector<optim::ParamView*> views;  // of its items; null: not the optimizer's
    int64_t optimizer_bytes = 0;           // masters and states, this rank's, also those to come
    int64_t gradient_bytes = 0;            // of the mean, this rank's part
  };

  // `chunk_bytes`: of whole values. A host context is made when something may live there. Throws
  // Error when no file can be made in nvme_dir.
  ChunkHomes(const PlacementOptions& options, const std::vector<int64_t>& chunk_bytes,
             const ContextPtr& device);

  // For ShardedParametersOptions.
  const std::vector<ContextPtr>& parameter_homes() const { return parameter_homes_; }
  const std::vector<bool>& keep() const { return keep_; }
  const ContextPtr& optimizer_home(size_t chunk) const { return optimizer_homes_[chunk]; }
  // For GradientChunkOptions::context_of: with the optimizer's data, but under a budget only if it
  // has room for `bytes` beside what will be gathered.
  ContextPtr GradientHome(size_t chunk, int64_t bytes, const chunk::GatherSchedule& schedule) const;
  // Null when nothing lives there.
  const ContextPtr& host() const { return host_; }
  const ContextPtr& disk() const { return disk_; }
  // "device", "host" or "disk".
  std::string NameOf(const ContextPtr& home) const;

  // From now on the device keeps to the budget. `gathered_bytes`: what is gathered at a time, as
  // far as the modules tell; `gradient_bytes`: of the largest gradient. Throws Error, and has set
  // nothing, when it cannot train with so little.
  void LimitDevice(int64_t gathered_bytes, int64_t gradient_bytes);
  // Whether Settle is still to come: under "auto", once.
  bool is_unsettled() const { return options_.device_budget_bytes != 0 && !settled_; }
  // Between iterations: decides, moves, and sets the schedule's capacity. `keep_gathered`: room
  // that is left may keep gathered values. Collective.
  void Settle(chunk::ShardedParameters& parameters, std::span<const ChunkData> chunks,
              bool keep_gathered);
  // Around the optimizer's step. Asynchronous.
  void ReadAhead() const {
    if (file_ != nullptr) file_->ReadAhead();
  }
  void WriteBack() const {
    if (file_ != nullptr) file_->WriteBack();
  }

 private:
  // Shard and optimizer data.
  void MoveToDevice(chunk::ShardedParameters& parameters, size_t chunk, const ChunkData& data);

  PlacementOptions options_;
  ContextPtr device_, host_, disk_;
  FileAllocator* file_ = nullptr;  // disk_'s
  std::vector<ContextPtr> parameter_homes_, optimizer_homes_;
  std::vector<bool> keep_;
  int64_t gathered_bytes_ = 0;  // at one time
  int64_t gradient_bytes_ = 0;  // that come out of backward at a time
  int64_t reserved_bytes_ = 0;  // for gathered values
  bool settled_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_CHUNK_HOMES_H_
