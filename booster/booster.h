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

  Plugin& plugin() { return plugin_; }

 private:
  Plugin& plugin_;
  const nn::Module* model_ = nullptr;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_BOOSTER_H_
