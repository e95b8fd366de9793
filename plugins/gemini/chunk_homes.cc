// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/chunk_homes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apogee/core/status.h"
#include "apogee/tensor/make_context.h"

namespace apogee {
namespace {

// Chooses chunks in order, from the first or the last one, so that their bytes are nearest to
// `fraction` of all bytes.
std::vector<bool> Choose(const std::vector<int64_t>& bytes, double fraction, bool from_last) {
  const double want =
      fraction * static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  std::vector<bool> chosen(bytes.size());
  double sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t c = from_last ? bytes.size() - 1 - i : i;
    const double with = sum + static_cast<double>(bytes[c]);
    if (std::abs(with - want) > std::abs(sum - want)) break;
    chosen[c] = true;
    sum = with;
  }
  return chosen;
}

// The smallest of the ranks' numbers. They must be below 2^53.
int64_t Least(const comm::GroupPtr& group, int64_t value, const ContextPtr& context) {
  if (group == nullptr) return value;
  const Tensor least = Tensor::Full({1}, DType::kF64, -static_cast<double>(value), context);
  group->AllReduce(least, comm::ReduceOp::kMax);
  return static_cast<int64_t>(-least.Item());
}

}  // namespace

ChunkHomes::ChunkHomes(const PlacementOptions& options, const std::vector<int64_t>& chunk_bytes,
                       const ContextPtr& device)
    : device_budget_bytes_(options.device_budget_bytes), device_(device) {
  const bool is_auto = options.placement_policy == PlacementPolicy::kAuto;
  const double parameters = is_auto ? 1 : options.offload_param_frac;
  const double states = is_auto ? 1 : options.offload_optim_frac;
  APOGEE_CHECK(options.nvme_dir.empty() || device_->is_host(),
               "gemini: nvme_dir works only for models on the CPU so far; this one is on ",
               device_->device().ToString(),
               ", which cannot reach a file's pages. Leave nvme_dir out: data that is not on the "
               "GPU then lies in the host's memory");
  if (parameters > 0 || states > 0) host_ = HostMemoryFor(device);
  if (!options.nvme_dir.empty()) {
    // A dry run writes no file.
    if (device->is_dry()) {
      disk_ = HostMemoryFor(device);
    } else {
      auto file = ValueOrThrow(FileAllocator::Create(options.nvme_dir));
      file_ = file.get();
      disk_ = std::make_shared<DeviceContext>(host_->device(), std::move(file), host_->kernels(),
                                              host_->num_threads());
    }
  }
  keep_ = Choose(chunk_bytes, 1 - options.shard_param_frac, /*from_last=*/false);
  const std::vector<bool> parameter_away = Choose(chunk_bytes, parameters, /*from_last=*/true);
  const std::vector<bool> optimizer_away = Choose(chunk_bytes, states, /*from_last=*/true);
  for (size_t c = 0; c < chunk_bytes.size(); ++c) {
    parameter_homes_.push_back(parameter_away[c] && !keep_[c] ? host_ : device_);
    optimizer_homes_.push_back(!optimizer_away[c] ? device_ : disk_ != nullptr ? disk_ : host_);
  }
}

void ChunkHomes::LimitDevice(int64_t gathered_bytes, int64_t gradient_bytes) {
  if (device_budget_bytes_ == 0) return;
  MemoryLedger& ledger = device_->ledger();
  const int64_t others = ledger.model_data_bytes();
  const int64_t least = others + gathered_bytes + gradient_bytes;
  APOGEE_CHECK(device_budget_bytes_ >= least, "device_budget_bytes is ", device_budget_bytes_,
               ", but this model needs at least ", least, ": ", gathered_bytes,
               " for the parameters of the modules that run at one time, ", gradient_bytes,
               " for its largest gradient, and ", others,
               " for model data on the device that this plugin does not manage");
  gathered_bytes_ = gathered_bytes;
  gradient_bytes_ = gradient_bytes;
  ledger.set_model_data_limit(device_budget_bytes_);
}

ContextPtr ChunkHomes::GradientHome(size_t chunk, int64_t bytes,
                                    const chunk::GatherSchedule& schedule) const {
  if (optimizer_homes_[chunk] != device_) return host_;
  if (device_budget_bytes_ == 0) return device_;
  const int64_t to_gather = std::max<int64_t>(reserved_bytes_ - schedule.gathered_bytes(), 0);
  const int64_t room =
      device_budget_bytes_ - device_->ledger().model_data_bytes() - to_gather - gradient_bytes_;
  return bytes <= room ? device_ : host_;
}

std::string ChunkHomes::NameOf(const ContextPtr& home) const {
  return home == device_ ? "device" : home == host_ ? "host" : "disk";
}

void ChunkHomes::MoveToDevice(chunk::ShardedParameters& parameters, size_t chunk,
                              const ChunkData& data) {
  parameters.MoveHome(chunk, device_);
  const std::vector<chunk::ChunkItem>& items = parameters.plan()[chunk].items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (data.views[i] == nullptr) continue;
    data.views[i]->MoveTo(parameters.Shard(items[i].parameter), device_);
  }
  parameter_homes_[chunk] = optimizer_homes_[chunk] = device_;
}

void ChunkHomes::Settle(chunk::ShardedParameters& parameters, std::span<const ChunkData> chunks,
                        bool keep_gathered) {
  settled_ = true;
  parameters.ValuesChanged();
  const MemoryLedger& ledger = device_->ledger();
  // Other iterations may use modules that this one did not.
  const int64_t gathered = std::max(gathered_bytes_, parameters.schedule().peak_held_bytes());
  gradient_bytes_ = std::max(gradient_bytes_, ledger.peak_bytes(MemoryCategory::kGradient));
  int64_t room = device_budget_bytes_ - ledger.model_data_bytes() - gathered - gradient_bytes_;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const int64_t needed =
        parameters.ShardBytes(c) + chunks[c].optimizer_bytes + chunks[c].gradient_bytes;
    if (needed > room) continue;
    MoveToDevice(parameters, c, chunks[c]);
    room -= needed;
  }
  host_->allocator().ReleaseCache();
  room = Least(parameters.group(), std::max<int64_t>(room, 0), device_);
  reserved_bytes_ = gathered + (keep_gathered ? room : 0);
  if (keep_gathered && room > 0) parameters.schedule().set_capacity_bytes(reserved_bytes_);
}

}  // namespace apogee
