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
//
// Checkpoints, in a folder of their own:
//
//   OkOrThrow(booster.save_training_state("run/checkpoints", {.step = step}));   // every so often
//   auto resumed = booster.resume("run/checkpoints");       // a new process, after boost
//   if (resumed.ok()) step = resumed->position.step;
//   else if (!absl::IsNotFound(resumed.status())) ...       // NotFound: start anew
#ifndef APOGEE_BOOSTER_BOOSTER_H_
#define APOGEE_BOOSTER_BOOSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/training_state.h"
#include "apogee/checkpoint/file_system.h"
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

struct SaveOptions {
  // Checkpoints that stay, the newest: at least 2, for the newest may turn out to be damaged.
  int64_t keep = 3;
  // Takes what went wrong beside the save, on rank 0: an older checkpoint that could not be removed
  // or was found damaged. Null: stderr.
  std::function<void(const std::string&)> notice = nullptr;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

// What resume() found.
struct Resumed {
  RunPosition position;
  std::string path;  // of the checkpoint
  // Newer checkpoints that were passed over, newest first: a sentence each, with the reason.
  std::vector<std::string> notices;
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

  // Saves everything that training_state.h lists as `folder`/step-NNNNNNNN, then removes all but
  // the newest options.keep checkpoints up to this step; newer ones stay, and none is overwritten.
  // The folder is made if it is missing, the one above must exist. Once it returns ok the
  // checkpoint survives a power cut. A damaged checkpoint of this very step is renamed out of the
  // way; a valid one is AlreadyExists. Collective, between step() and the next backward, with the
  // same arguments; the same status on every rank. Throws Error before boost.
  absl::Status save_training_state(const std::string& folder, const RunPosition& position,
                                   const SaveOptions& options = {});

  // Loads the newest checkpoint of the folder into what was boosted; one that turns out to be
  // damaged is passed over for the next older one. The folder stays as it is. NotFound where there
  // is none (start anew), DataLoss where all are damaged, InvalidArgument where the checkpoint is
  // whole but of another model or optimizer; nothing has changed then. Collective, after boost and
  // before the first step; the same result on every rank. Throws Error before boost.
  absl::StatusOr<Resumed> resume(
      const std::string& folder,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());
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
  optim::LrScheduler* scheduler_ = nullptr;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_BOOSTER_H_
