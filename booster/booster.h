// SPDX-License-Identifier: Apache-2.0

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
// boosted.criterion is the mean over the targets that count in the micro-batch of all ranks
// (plugins/loss_normalizer.h): batches, and ignored targets, may be spread unevenly. Its value is
// this rank's share, and the mean over the ranks is the loss.
//
// Accumulation: call backward once per micro-batch with the loss divided by the number of
// micro-batches, then step. A shorter last window divides by its own number. That is the mean of
// the micro-batches' means; for the mean over all targets of the window see accumulation_window.
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
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/run_lock.h"
#include "apogee/booster/training_state.h"
#include "apogee/checkpoint/background_saver.h"
#include "apogee/checkpoint/file_system.h"
#include "apogee/checkpoint/hf_weights.h"
#include "apogee/core/trace.h"
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

// Where and how a file is written.
struct FileOptions {
  // Returns as soon as what is saved has been copied; a thread writes while training goes on. See
  // wait_for_saves.
  bool use_async = false;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct SaveOptions {
  // Checkpoints that stay, the newest: at least 2, for the newest may turn out to be damaged.
  int64_t keep = 3;
  bool use_async = false;  // as in FileOptions
  // Takes what went wrong beside the save, on rank 0: an older checkpoint that could not be removed
  // or was found damaged. Called within the save, or within the next save or wait_for_saves where
  // this one is asynchronous; the destructor prints what was not told by then. Null: stderr.
  std::function<void(const std::string&)> notice = nullptr;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct SaveModelOptions {
  // Files as in checkpoint/hf_weights.h.
  bool shard = true;
  int64_t size_per_shard_mb = 5120;
  bool use_safetensors = true;
  std::string config_json = {};
  bool use_async = false;  // as in FileOptions
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct LoadModelOptions {
  // false: tensors that are missing, or that nobody asked for, are reported, not refused.
  bool strict = true;
  // What the model's names begin with and those in the files do not, and the other way round.
  std::string model_prefix = {}, file_prefix = {};
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

// What resume() found.
struct Resumed {
  RunPosition position;
  std::string path;  // of the checkpoint
  // A sentence each: newer checkpoints that were passed over, newest first, with the reason;
  // settings of this run that are not the saved one's, and options that have no effect, for the
  // saved ones go on; a learning-rate schedule that is not the saved run's; and a schedule or
  // dynamic loss scale that was saved and that this run lacks. Without control characters.
  std::vector<std::string> notices;
};

class Booster {
 public:
  // The plugin must outlive the booster, and so must what boost is given, for as long as the
  // booster is used: a call after one of them was destroyed throws Error that names it.
  explicit Booster(Plugin& plugin) : plugin_(plugin), watched_plugin_(&plugin) {}
  ~Booster();
  Booster(const Booster&) = delete;
  Booster& operator=(const Booster&) = delete;

  // Records what follows: the forward and backward of every module, backward and step as a whole on
  // the lane "compute" of `rank`, saves there or, in the background, on "saver". Before boost. The
  // trace must outlive the model and the optimizer; null: nothing is recorded.
  //
  //   booster.TraceTo(world.trace(), world.rank());
  void TraceTo(Trace* trace, int rank);

  // What this run is, for its checkpoints and for resume (run_config.h). Before boost, the same on
  // every rank.
  void set_run_config(RunConfig config);

  // Prepares everything for training. Call it once per model, after Initialize (or loading) and
  // before the first step. Parameters keep their names and values; the optimizer keeps its groups,
  // options and state. Collective. Throws Error, before anything has changed, when the plugin
  // cannot run the setup exactly, when the optimizer holds parameters that are not the model's, or
  // on a second call.
  Boosted boost(nn::Module& model, optim::Optimizer& optimizer, Criterion criterion = nullptr,
                data::Loader* loader = nullptr, optim::LrScheduler* scheduler = nullptr);

  // Adds the gradients of `loss` (a scalar) to the parameters'. Collective where the plugin reduces
  // gradients inside backward. Throws Error for an optimizer that is not the one that boost
  // returned: one of the loop's own, for other parameters, is stepped beside it and not given here.
  void backward(const Tensor& loss, optim::Optimizer& optimizer);

  // Forward and backward of one batch under any plugin; what a plugin with pipeline stages has
  // instead of both.
  //
  //   PipelineResult result = booster.execute_pipeline(batch, boosted.model, boosted.criterion,
  //                                                    &boosted.optimizer);
  //   boosted.optimizer.step();
  //
  // Every rank that trains one copy of the model gives the same batch; result.loss is that copy's
  // loss, on each. With boosted.criterion it is the share of the mean over all copies' targets,
  // whichever micro-batches these are in. The loss scale and the number of micro-batches are
  // applied within, once: a loop that accumulates several calls divides the loss by their number in
  // its criterion. Without an optimizer the batch is evaluated. Hooks of the model itself do not
  // run where it is cut into stages; those of modules within its pieces do. Collective.
  struct PipelineOptions {
    // The model's outputs in the result, on ranks of the last part.
    bool return_outputs = false;
  };
  PipelineResult execute_pipeline(const data::Batch& batch, nn::Module& model,
                                  const Criterion& criterion, optim::Optimizer* optimizer) {
    return execute_pipeline(batch, model, criterion, optimizer, {});
  }
  PipelineResult execute_pipeline(const data::Batch& batch, nn::Module& model,
                                  const Criterion& criterion, optim::Optimizer* optimizer,
                                  const PipelineOptions& options);

  // Until the handle goes, boosted.criterion gives addends of the mean over a whole window of
  // micro-batches, of which this rank's have `num_targets` targets that count: the loop adds up
  // gradients and does not divide by the number of micro-batches. Collective, once per window.
  //
  //   const auto window = booster.accumulation_window(num_targets);   // nn::CountTargets of each
  //   for (int i = 0; i < n; ++i) {
  //     const auto keep = i + 1 < n ? booster.no_sync() : nullptr;
  //     booster.backward(boosted.criterion(boosted.model(x[i]), y[i]), boosted.optimizer);
  //   }
  //   boosted.optimizer.step();
  //
  // step() throws Error, on every rank, where the micro-batches had another number of targets.
  [[nodiscard]] std::shared_ptr<void> accumulation_window(int64_t num_targets);

  // Until the handle goes, backward accumulates without reducing over ranks.
  [[nodiscard]] std::shared_ptr<void> no_sync() { return plugin_.NoSync(); }

  // Saves everything that training_state.h lists as `folder`/step-NNNNNNNN, then removes all but
  // the newest options.keep checkpoints up to this step; newer ones stay, and none is overwritten.
  // The folder is made if it is missing, the one above must exist; it is this booster's until it
  // goes or saves elsewhere: meanwhile another's save there is FailedPrecondition (run_lock.h; on
  // the machine's file system only). Once it returns ok (with use_async: once wait_for_saves does)
  // the checkpoint survives a power cut. What is in the place of this very step and is damaged, no
  // checkpoint of that step, or was passed over by resume, is renamed out of the way and never
  // deleted; a valid one is AlreadyExists. Collective, between
  // step() and the next backward, with the same arguments; the same status on every rank. Throws
  // Error before boost.
  absl::Status save_training_state(const std::string& folder, const RunPosition& position,
                                   const SaveOptions& options = {});

  // Loads the newest checkpoint of the folder into what was boosted; one that turns out to be
  // damaged is passed over for the next older one. The folder stays as it is. NotFound where there
  // is none (start anew), DataLoss where all are damaged, InvalidArgument where the checkpoint is
  // whole but of another model, optimizer or identity (run_config.h), with a list, Unimplemented
  // where the newest is of a newer format, PermissionDenied or Unavailable where it cannot be
  // opened; nothing has changed then. Collective, after boost and before the first step; the same
  // result on every rank. Throws Error before boost.
  absl::StatusOr<Resumed> resume(
      const std::string& folder,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());

  // Writes the model's weights as Hugging Face libraries read them (checkpoint/hf_weights.h): the
  // same folder under every plugin. AlreadyExists for a folder that is there. Collective over the
  // plugin's ranks, after boost; every rank gets the same status. So for all below.
  //
  //   OkOrThrow(booster.save_model("out", {.config_json = config}));
  absl::Status save_model(const std::string& path, const SaveModelOptions& options = {});
  // Reads such a folder, of any dtype and from whatever wrote it, into the model and the
  // optimizer's master weights; optimizer states stay. For an error that lists what does not fit,
  // nothing has changed.
  absl::StatusOr<checkpoint::LoadReport> load_model(const std::string& path,
                                                    const LoadModelOptions& options = {});
  // All states of the optimizer, its options, master weights and steps, as a folder in the format
  // of checkpoints; loads under any plugin and number of ranks. With save_model and
  // save_lr_scheduler it is what a training state is, but for random state, loss scale and
  // position: use save_training_state to go on with a run.
  absl::Status save_optimizer(const std::string& path, const FileOptions& options = {});
  // InvalidArgument that lists what does not fit: another optimizer, groups, shapes; DataLoss for
  // what is damaged. Nothing has changed then.
  absl::Status load_optimizer(
      const std::string& path,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());
  // Where the schedule given to boost stands. Throws Error without one.
  absl::Status save_lr_scheduler(const std::string& path, const FileOptions& options = {});
  absl::Status load_lr_scheduler(
      const std::string& path,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());

  // Saves with use_async: every save first waits for the one before. Where that failed, the next
  // save, of any kind, returns its error and saves nothing, unless wait_for_saves did so before.
  // resume and all that load wait for the save under way, too, and leave its status.
  // Waits for the save under way and returns its status, once; the same on every rank. Does not
  // communicate. The destructor waits too, and prints an error that nobody asked for.
  absl::Status wait_for_saves();
  // What wait_for_saves would say; nothing while a save is under way, which ranks see at different
  // times.
  std::optional<absl::Status> save_status();

  // Whether the disk has room for so many training states in a folder that is there:
  // ResourceExhausted with the numbers, NotFound where there is no such folder. Call it after the
  // first step, when the optimizer has its states. Collective.
  absl::Status check_space(
      const std::string& folder, int64_t checkpoints = 2,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem()) const;

  Plugin& plugin() { return plugin_; }

 private:
  using SavePtr = std::shared_ptr<checkpoint::PlannedSave>;
  // Runs `write` here, or on the saving thread with copies of what `save` needs.
  absl::Status Write(bool use_async, const SavePtr& save, checkpoint::BackgroundSaver::Write write);
  absl::Status WriteTo(const std::string& path, bool use_async,
                       const std::shared_ptr<checkpoint::FileSystem>& files, const SavePtr& save);
  // Throws Error before boost, and once one of what was boosted is gone.
  void CheckBoosted(const char* what) const;
  void CheckScheduler(const char* what) const;
  // What every save, and what it would write over, begins with: ranks hold the same.
  void SyncReplicas();

  Plugin& plugin_;
  Watched<Plugin> watched_plugin_;
  RunConfig config_;
  TraceLane* compute_lane_ = nullptr;
  TraceLane* saver_lane_ = nullptr;
  Watched<nn::Module> model_;
  Watched<optim::Optimizer> optimizer_;
  Watched<optim::LrScheduler> scheduler_;
  std::shared_ptr<LossNormalizer> normalizer_;          // after boost
  std::unique_ptr<RunLock> folder_lock_;                // on rank 0, of the last training state's
  std::unique_ptr<checkpoint::BackgroundSaver> saver_;  // once there was a save
  std::map<std::string, std::string> passed_over_;      // checkpoints that resume did, and why
  // Of the save under way: what it noted, on its thread until it has ended, and for whom.
  std::shared_ptr<std::vector<std::string>> notices_;
  std::function<void(const std::string&)> notice_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_BOOSTER_H_
