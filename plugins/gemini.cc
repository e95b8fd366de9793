// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini.h"

#include <utility>

#include "apogee/plugins/gemini/gemini_state.h"

namespace apogee {

std::vector<optim::OptionField<GeminiOptions>> GeminiOptions::Fields() {
  return optim::InnerFields(&GeminiOptions::placement);
}

GeminiPlugin::GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training,
                           const GeminiOptions& options)
    : GeminiPlugin(std::move(group), training, options, CutParameters{}) {}

GeminiPlugin::GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training,
                           const GeminiOptions& options, const CutParameters& cut)
    : state_(std::make_unique<State>(std::move(group), training, options, cut)) {}

GeminiPlugin::~GeminiPlugin() = default;

void GeminiPlugin::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  state_->Check(model, optimizer);
}
optim::Optimizer& GeminiPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return state_->Configure(model, optimizer);
}
void GeminiPlugin::Backward(const Tensor& loss, optim::Optimizer& /*optimizer*/) {
  state_->Backward(loss);
}
std::shared_ptr<void> GeminiPlugin::NoSync() { return state_->guard_->NoSync(); }
comm::GroupPtr GeminiPlugin::group() const { return state_->group_; }
comm::GroupPtr GeminiPlugin::data_group() const { return state_->group_; }
Layout GeminiPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  return state_->LayoutOf(parameter);
}
Tensor GeminiPlugin::WholeValue(const autograd::Parameter& parameter) const {
  return state_->WholeValue(parameter);
}
optim::LossScaler* GeminiPlugin::loss_scaler() { return state_->guard_->loss_scaler(); }
double GeminiPlugin::loss_scale() const { return state_->guard_->loss_scale(); }
const chunk::ShardedParameters& GeminiPlugin::chunks() const { return *state_->parameters_; }
const ChunkHomes& GeminiPlugin::homes() const { return *state_->homes_; }
const ChunkRecord& GeminiPlugin::chunk_record() const { return *state_->record_; }
const ContextPtr& GeminiPlugin::host() const { return state_->homes_->host(); }
int64_t GeminiPlugin::peak_other_bytes() const { return state_->record_->peak_other_bytes(); }
const TrainingOptions& GeminiPlugin::training_options() const { return state_->training_; }
const GeminiOptions& GeminiPlugin::options() const { return state_->options_; }

}  // namespace apogee
