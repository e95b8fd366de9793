// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/resident_engine.h"

#include <utility>

#include "apogee/core/process_memory.h"
#include "apogee/plugins/precision.h"
#include "apogee/tensor/make_context.h"

namespace apogee {
namespace {

std::string Problems(const LowLevelZeroOptions& options) {
  if (options.stage == 1 || options.stage == 2) return "";
  return "\n  stage must be 1 (states sharded) or 2 (gradients too), got " +
         std::to_string(options.stage);
}

}  // namespace

ResidentEngine::ResidentEngine(comm::GroupPtr group, const TrainingOptions& training,
                               const LowLevelZeroOptions& options, const CutParameters& cut)
    : ShardedEngine("low_level_zero", std::move(group), training, cut, Problems(options)),
      options_(options) {
  if (options.communication_dtype) communication_dtype_ = DTypeOf(*options.communication_dtype);
  keep_masters_ = options.master_weights;
}

void ResidentEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  ShardedEngine::Check(model, optimizer);
  if (options_.offload_states) CheckRoom(PrecisionPolicy(training_, model), optimizer);
}

void ResidentEngine::CheckRoom(const PrecisionPolicy& policy, optim::Optimizer& optimizer) const {
  const absl::StatusOr<int64_t> available = AvailableMemoryBytes();
  if (!available.ok()) return;  // the system does not say; the allocator will fail if needed
  int64_t needed = optimizer.states().PlannedBytes();
  for (const optim::ParamView& view : optimizer.views()) {
    const bool master =
        view.trainable() && options_.master_weights && NeedsMasters(policy.Of(*view.parameter()));
    needed += master ? 4 * view.value().numel() : 0;
  }
  // The ranks of one host together hold all shards.
  APOGEE_CHECK(needed <= *available, plugin_, ": offload_states needs ", needed,
               " bytes of host memory for the states of optimizer ", optimizer.name(), ", ",
               *available, " are available; use an optimizer with smaller states, or more hosts");
}

std::vector<chunk::ChunkSpec> ResidentEngine::Plan(nn::Module& /*model*/,
                                                   const Share& share) const {
  const DType grad_dtype = NeedsMasters(policy_.dtype()) ? DType::kF32 : policy_.dtype();
  std::vector<chunk::ChunkRequest> requests;
  for (size_t i = share.first; i < share.first + share.count; ++i) {
    const Sharded& sharded = sharded_[i];
    const autograd::Parameter& parameter = *sharded.parameter;
    const int bucket = cut_.bucket_key ? cut_.bucket_key(parameter) : 0;
    requests.push_back({.numel = parameter.shape().numel(),
                        .element_bytes = DTypeSize(communication_dtype_.value_or(grad_dtype)),
                        .key = 2 * bucket + (policy_.Of(parameter) == policy_.dtype() ? 0 : 1),
                        .cut_multiple = sharded.cut_multiple});
  }
  return chunk::PlanChunks(requests, {.chunk_bytes = training_.bucket_bytes,
                                      .num_shards = comm::GroupSize(share.group)});
}

void ResidentEngine::PlaceValues(nn::Module& model,
                                 const std::vector<std::vector<chunk::ChunkSpec>>& plans) {
  const ContextPtr context = model.Parameters()[0]->context();
  state_context_ = options_.offload_states ? HostMemoryFor(context) : context;
  for (size_t i = 0; i < plans.size(); ++i) PlaceValues(shares_[i], plans[i]);
}

void ResidentEngine::PlaceValues(const Share& share, const std::vector<chunk::ChunkSpec>& plan) {
  parameters_.push_back(std::make_unique<chunk::ParameterChunks>(
      Parameters(share), plan, share.group, DTypesOf(share, plan),
      [this, first = share.first](size_t i, const Tensor& old_value, const Tensor& shard,
                                  const Layout& layout) {
        optim::ParamView& view = *sharded_[first + i].view;
        view.set_state_context(state_context_);
        view.set_keep_master(keep_masters_);
        Bind(first + i, old_value, shard, layout);
      },
      optimizer_->listeners()));
}

chunk::GradientChunkOptions ResidentEngine::GradientOptions(optim::Optimizer& /*optimizer*/,
                                                            const Share& share) {
  // If ranks waited inside backward for chunks of different shares, they would wait for ever.
  return {.overlap = training_.overlap && !share.is_experts,
          .communication_dtype = communication_dtype_,
          .keep_whole = options_.stage == 1};
}

void ResidentEngine::BeforeStep() {
  ShardedEngine::BeforeStep();
  for (const auto& chunks : parameters_) chunks->Wait();
}

void ResidentEngine::BeforeWeightsReplaced() {
  for (const auto& chunks : parameters_) chunks->Wait();
}

void ResidentEngine::AfterStep() {
  ShardedEngine::AfterStep();
  if (!optimizer_->may_have_updated()) return;
  for (const auto& chunks : parameters_) chunks->GatherAsync();
  if (options_.overlap_gather) return;
  for (const auto& chunks : parameters_) chunks->Wait();
}

}  // namespace apogee
