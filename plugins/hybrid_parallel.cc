// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid_parallel.h"

#include <utility>

#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid/hybrid_state.h"

namespace apogee {

std::vector<optim::OptionField<HybridParallelOptions>> HybridParallelOptions::Fields() {
  using Options = HybridParallelOptions;
  std::vector<optim::OptionField<Options>> fields = {
      {"tp_size", &Options::tp_size},
      {"pp_size", &Options::pp_size},
      {"sp_size", &Options::sp_size},
      {"ep_size", &Options::ep_size},
      {"sp_mode", optim::EnumField(&Options::sp_mode, nn::parallel::ParseSequenceMode)},
      {"stage", &Options::stage},
      {"communication_dtype", optim::EnumField(&Options::communication_dtype, ParsePrecision)},
      {"overlap_gather", &Options::overlap_gather},
      {"master_weights", &Options::master_weights},
      {"offload_states", &Options::offload_states},
      {"schedule", optim::EnumField(&Options::schedule, pipeline::ParsePipelineSchedule)},
      {"num_model_chunks", &Options::num_model_chunks},
      {"num_microbatches", &Options::num_microbatches},
      {"microbatch_size", &Options::microbatch_size},
      {"piece_costs", &Options::piece_costs},
      {"pieces_per_part", &Options::pieces_per_part}};
  for (auto& field : optim::InnerFields(&Options::placement)) fields.push_back(std::move(field));
  return fields;
}

HybridParallelPlugin::HybridParallelPlugin(const comm::World& world,
                                           const TrainingOptions& training,
                                           const HybridParallelOptions& options)
    : state_(std::make_unique<State>(world, training, options)) {}

HybridParallelPlugin::~HybridParallelPlugin() = default;

optim::Optimizer& HybridParallelPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return state_->Configure(model, optimizer);
}
Criterion HybridParallelPlugin::ConfigureCriterion(Criterion criterion) {
  return state_->ConfigureCriterion(std::move(criterion));
}
void HybridParallelPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  state_->Backward(loss, optimizer);
}
PipelineResult HybridParallelPlugin::ExecutePipeline(const PipelineCall& call) {
  return state_->pipeline_.is_on() ? state_->ExecutePipeline(call) : Plugin::ExecutePipeline(call);
}
Tensor HybridParallelPlugin::Evaluate(nn::Module& model, const Tensor& inputs) {
  return state_->pipeline_.is_on() ? state_->pipeline_.Evaluate(model, inputs)
                                   : Plugin::Evaluate(model, inputs);
}
std::shared_ptr<void> HybridParallelPlugin::NoSync() { return state_->inner().NoSync(); }
comm::GroupPtr HybridParallelPlugin::group() const { return state_->world_.group(); }
comm::GroupPtr HybridParallelPlugin::data_group() const {
  return mesh().group({comm::Axis::kDp, comm::Axis::kEp});
}
comm::GroupPtr HybridParallelPlugin::batch_group() const {
  return mesh().group({comm::Axis::kDp, comm::Axis::kSp, comm::Axis::kEp});
}
Layout HybridParallelPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  return state_->LayoutOf(parameter);
}
optim::LossScaler* HybridParallelPlugin::loss_scaler() { return state_->inner().loss_scaler(); }
int HybridParallelPlugin::data_rank() const { return state_->DataRank(); }
int HybridParallelPlugin::data_size() const {
  return mesh().size(comm::Axis::kDp) * mesh().size(comm::Axis::kEp);
}
const comm::Mesh& HybridParallelPlugin::mesh() const { return state_->mesh(); }
Tensor HybridParallelPlugin::WholeValue(const autograd::Parameter& parameter) const {
  return state_->WholeValue(parameter);
}
const nn::parallel::TensorParallel* HybridParallelPlugin::tensor_parallel() const {
  return state_->parallel_.get();
}
const nn::parallel::SequenceParallel* HybridParallelPlugin::sequence_parallel() const {
  return state_->sequence_.parallel();
}
const nn::parallel::ExpertParallel* HybridParallelPlugin::expert_parallel() const {
  return state_->experts_.get();
}
comm::GroupPtr HybridParallelPlugin::gather_group() const {
  return gemini() == nullptr ? nullptr : gemini()->gather_group();
}
const GeminiPlugin* HybridParallelPlugin::gemini() const {
  return state_->options_.stage == 3 ? static_cast<const GeminiPlugin*>(state_->inner_.get())
                                     : nullptr;
}
const pipeline::Cut* HybridParallelPlugin::cut() const { return state_->pipeline_.cut(); }

}  // namespace apogee
