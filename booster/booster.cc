#include "apogee/booster/booster.h"

#include <unordered_set>
#include <utility>

#include "apogee/optim/local_gradients.h"

namespace apogee {
namespace {

std::vector<checkpoint::TensorPart> PartsOf(const nn::Module& model, const Plugin& plugin) {
  std::vector<checkpoint::TensorPart> parts;
  for (const auto& parameter : model.Parameters()) {
    parts.push_back({parameter->name(), parameter->data(), plugin.LayoutOf(*parameter)});
  }
  return parts;
}

}  // namespace

Boosted Booster::boost(nn::Module& model, optim::Optimizer& optimizer, Criterion criterion,
                       data::Loader* loader, optim::LrScheduler* scheduler) {
  APOGEE_CHECK(model_ == nullptr,
               "boost: this booster already runs a model; make one Booster (and "
               "plugin) per model");
  std::unordered_set<const autograd::Parameter*> known;
  for (const auto& parameter : model.Parameters()) {
    APOGEE_CHECK(parameter->has_value(), "boost: parameter \"", parameter->name(),
                 "\" has no value yet; call model.Initialize(context) or load weights first");
    known.insert(parameter.get());
  }
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(known.contains(view.parameter().get()), "boost: the optimizer holds \"",
                 view.name(),
                 "\", which is not a parameter of the model; construct the optimizer from "
                 "model.Parameters()");
  }
  optim::Optimizer& configured = plugin_.Configure(model, optimizer);
  model_ = &model;
  optimizer_ = &configured;
  scheduler_ = scheduler;
  return {model, configured, plugin_.ConfigureCriterion(std::move(criterion)), loader, scheduler};
}

void Booster::backward(const Tensor& loss, optim::Optimizer& optimizer) {
  APOGEE_CHECK(model_ != nullptr, "backward: call boost(model, optimizer) first");
  plugin_.Backward(loss, optimizer);
}

absl::Status Booster::save_model(const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const std::string& path,
                                 const checkpoint::SaveWeightsOptions& options) const {
  APOGEE_CHECK(model_ != nullptr, "save_model: call boost(model, optimizer) first");
  // One rank writes what all of them hold.
  auto* local = dynamic_cast<optim::LocalGradientOptimizer*>(optimizer_);
  if (local != nullptr) local->SyncReplicas();
  return checkpoint::SaveModelWeights({files, path}, PartsOf(*model_, plugin_), options,
                                      plugin_.group());
}

absl::StatusOr<checkpoint::LoadReport> Booster::load_model(
    const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path,
    const checkpoint::LoadWeightsOptions& options) {
  APOGEE_CHECK(model_ != nullptr, "load_model: call boost(model, optimizer) first");
  std::vector<checkpoint::TensorPart> parts = PartsOf(*model_, plugin_);
  // From the file, not from the weights, which are rounded to the working dtype.
  for (const optim::ParamView& view : optimizer_->views()) {
    if (view.own_master().defined())
      parts.push_back({view.name(), view.own_master(), view.layout()});
  }
  return checkpoint::LoadModelWeights({files, path}, parts, options, plugin_.group());
}

}  // namespace apogee
