// Booster: makes an ordinary training setup run under a plugin; the loop stays the same.
//
//   SingleRankPlugin plugin({.precision = "bf16", .max_norm = 1.0});
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, criterion, &loader, &scheduler);
//   for (const auto& batch : *boosted.loader) {
//     Tensor loss = boosted.criterion(boosted.model(batch.inputs), batch.targets);
//     booster.backward(loss, boosted.optimizer);
//     boosted.optimizer.step();
//     boosted.optimizer.zero_grad();
//   }
//
// Accumulation: call backward once per micro-batch with the loss divided by the number of
// micro-batches, then step. A shorter last window divides by its own number.
#ifndef APOGEE_BOOSTER_BOOSTER_H_
#define APOGEE_BOOSTER_BOOSTER_H_

#include <functional>
#include <memory>

#include "apogee/checkpoint/hf_weights.h"
#include "apogee/data/loader.h"
#include "apogee/optim/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// What boost() returns: the same objects, ready for the plugin's way of running. They must outlive
// it.
struct Boosted {
  nn::Module& model;
  optim::Optimizer& optimizer;
  Criterion criterion;
  data::Loader* loader = nullptr;
  optim::LrScheduler* scheduler = nullptr;
};

class Booster {
 public:
  // The plugin must outlive the booster.
  explicit Booster(Plugin& plugin) : plugin_(plugin) {}

  // Prepares everything for training. Call it once per model, after Initialize (or loading) and
  // before the first step. Parameters keep their names and values; the optimizer keeps its groups,
  // options and state. Collective. Throws Error, before anything has changed, when the plugin
  // cannot run the setup exactly, when the optimizer holds parameters that are not the model's, or
  // on a second call.
  Boosted boost(nn::Module& model, optim::Optimizer& optimizer, Criterion criterion = nullptr,
                data::Loader* loader = nullptr, optim::LrScheduler* scheduler = nullptr);

  // Adds the gradients of `loss` (a scalar) to the parameters'. Collective where the plugin reduces
  // gradients inside backward.
  void backward(const Tensor& loss, optim::Optimizer& optimizer);

  // Until the handle goes, backward accumulates without reducing over ranks.
  [[nodiscard]] std::shared_ptr<void> no_sync() { return plugin_.NoSync(); }

  // Writes the model's weights as Hugging Face libraries read them (checkpoint/hf_weights.h): the
  // same folder under every plugin. Collective over the plugin's ranks, after boost; every rank
  // gets the same status. AlreadyExists for a folder that is there.
  //
  //   OkOrThrow(booster.save_model(checkpoint::RealFileSystem(), "out", {.config_json = config}));
  absl::Status save_model(const std::shared_ptr<checkpoint::FileSystem>& files,
                          const std::string& path,
                          const checkpoint::SaveWeightsOptions& options = {}) const;
  // Reads such a folder, of any dtype and from whatever wrote it, into the model and the
  // optimizer's master weights; optimizer states stay. Collective like save_model. For an error
  // that lists what does not fit, nothing has changed.
  absl::StatusOr<checkpoint::LoadReport> load_model(
      const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path,
      const checkpoint::LoadWeightsOptions& options = {});

  Plugin& plugin() { return plugin_; }

 private:
  Plugin& plugin_;
  nn::Module* model_ = nullptr;
  optim::Optimizer* optimizer_ = nullptr;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_BOOSTER_H_
