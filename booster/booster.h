// SPDX-License-Identifier: Apache-2.0

// Booster: runs an ordinary training setup under a plugin; the loop stays the same.
//
//   SingleRankPlugin plugin({.precision = Precision::kBf16, .max_norm = 1.0});
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//   for (const auto& batch : loader) {
//     Tensor loss = boosted.criterion(boosted.model(batch.inputs), batch.targets);
//     booster.backward(loss, boosted.optimizer);
//     boosted.optimizer.step();
//     boosted.optimizer.zero_grad();
//   }
//
// boosted.criterion makes the loss the mean over all targets that count, in the micro-batches of
// all ranks together (plugins/loss_normalizer.h). So ranks may have unequal batches and unequal
// numbers of ignored targets. Its value is this rank's share; the mean over the ranks is the loss.
//
// The loader gives this rank's part of the data: its sampler gets plugin.data_rank() and
// plugin.data_size().
//
// Accumulation: booster.accumulate(n) makes n micro-batches one step. This gives the mean of the
// micro-batches' means. For the mean over all targets of the window use accumulation_window.
//
// Checkpoints, in a folder of their own:
//
//   OkOrThrow(booster.save_training_state("run/checkpoints", {.step = step}));   // every so often
//   auto resumed = booster.resume("run/checkpoints");       // in a new process, after boost
//   if (resumed.ok()) step = resumed->position.step;
//   else if (!absl::IsNotFound(resumed.status())) ...       // NotFound: start anew
#ifndef APOGEE_BOOSTER_BOOSTER_H_
#define APOGEE_BOOSTER_BOOSTER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/accumulation.h"
#include "apogee/booster/save_options.h"
#include "apogee/checkpoint/load_report.h"
#include "apogee/core/step_listener.h"
#include "apogee/core/trace/trace.h"
#include "apogee/data/loader.h"
#include "apogee/nn/generation/generate.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

class Adapters;             // lora/adapters.h
class TrainingCheckpoints;  // training_checkpoints.h
class SaveRunner;           // save_runner.h
class StepLog;              // core/trace/step_log.h
struct TrainingParts;       // training_state.h

// What boost() takes besides the model and the optimizer.
struct BoostOptions {
  // The loss of a model's output and its targets; nn::CrossEntropyLoss, nn::MeanLoss or a function.
  Criterion criterion = nullptr;
  // The learning-rate schedule, for checkpoints: save_training_state and resume include it. The
  // loop calls its step().
  optim::LrScheduler* scheduler = nullptr;
};

// The result of boost(): the objects to train with, which must outlive it. `optimizer` is the
// user's or its distributed form. `criterion` belongs to this model under this plugin.
struct Boosted {
  nn::Module& model;
  optim::Optimizer& optimizer;
  Criterion criterion;
};

class Booster : private StepListener {
 public:
  // The plugin, and everything given to boost, must exist as long as the booster is used. A call
  // after one of them was destroyed throws Error that names it.
  explicit Booster(Plugin& plugin);
  ~Booster() override;
  Booster(const Booster&) = delete;
  Booster& operator=(const Booster&) = delete;

  // Records the forward and backward of every module, and backward and step as a whole, on the lane
  // "compute" of `rank`, and the events of steps (core/step_listener.h) on "step events". Records
  // saves on "compute" or, in the background, on "saver". Call it before boost. The trace must
  // outlive the model and the optimizer; null: records nothing.
  //
  //   booster.TraceTo(world.trace(), world.rank());
  void TraceTo(Trace* trace, int rank);

  // Describes this run for its checkpoints and for resume (run_config.h). Call it before boost,
  // with the same values on every rank.
  void set_run_config(RunConfig config);

  // Trains adapters of low rank instead of the model: nn::AddLora, whose options these are. Call it
  // before the optimizer is made, on every rank alike. Works under every plugin. With
  // LoraOptions::quantize the frozen base is held in 4 or 8 bits. Throws Error, with the model
  // unchanged, for options that do not fit and after boost.
  //
  //   booster.enable_lora(model, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
  //   optim::AdamW optimizer(model.Parameters(), {.lr = 1e-4});
  //   auto boosted = booster.boost(model, optimizer, ...);
  //   OkOrThrow(booster.save_adapter("adapter"));               // opens in PEFT
  void enable_lora(nn::Module& model, const nn::LoraOptions& options,
                   const std::string& adapter = "default");
  // Goes on with an adapter of save_adapter or of PEFT. Every rank reads the folder. `quantize`: as
  // in LoraOptions.
  // InvalidArgument, with the model unchanged, lists fields and tensors that do not fit.
  absl::Status enable_lora_from(
      nn::Module& model, const std::string& pretrained_dir, const std::string& adapter = "default",
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem(),
      const std::optional<nn::QuantizeOptions>& quantize = {});

  // Prepares everything for training. Call it once per model, after Initialize (or loading) and
  // before the first step. Parameters keep their names and values; the optimizer keeps its groups,
  // options and state. Collective. Throws Error, before anything has changed, on a second call,
  // when the plugin cannot run the setup exactly, and when the optimizer holds parameters that are
  // not the model's.
  [[nodiscard]] Boosted boost(nn::Module& model, optim::Optimizer& optimizer,
                              const BoostOptions& options = {});

  // Adds the gradients of `loss` (a scalar) to the parameters' gradients. Collective if the plugin
  // reduces gradients inside backward. Throws Error if `optimizer` is not the one that boost
  // returned. To train other parameters with an optimizer of your own, step it in the loop; do not
  // pass it here.
  void backward(const Tensor& loss, optim::Optimizer& optimizer);

  // Runs forward and backward of one batch under any plugin. Under a plugin with pipeline stages it
  // replaces both.
  //
  //   PipelineResult result = booster.execute_pipeline(batch, boosted.model, boosted.criterion,
  //                                                    &boosted.optimizer);
  //   boosted.optimizer.step();
  //
  // Every rank that trains one replica of the model passes the same batch; result.loss is that
  // replica's loss, on each of them. With boosted.criterion it is the share of the mean over all
  // replicas' targets, however they are spread over micro-batches. The loss scale and the number of
  // micro-batches are applied inside. Under accumulate(n), which counts calls, result.loss has been
  // divided by n. Without an optimizer the batch is evaluated. When the model is cut into stages,
  // hooks of the model itself do not run; hooks of modules inside its pieces do. If the batch has
  // "starts" of packed documents, the model must take them (nn::Module::takes_documents).
  // Collective.
  struct PipelineOptions {
    // Return the model's outputs, on ranks that have the last part.
    bool return_outputs = false;
    // In training: a further loss of the modules that have run a micro-batch, added to the
    // criterion's; with mixtures of experts nn::AuxiliaryLossOf. It is called once for each
    // micro-batch on each part of the model, so it must be a sum over modules.
    Auxiliary auxiliary = nullptr;
  };
  PipelineResult execute_pipeline(const data::Batch& batch, nn::Module& model,
                                  const Criterion& criterion, optim::Optimizer* optimizer) {
    return execute_pipeline(batch, model, criterion, optimizer, {});
  }
  PipelineResult execute_pipeline(const data::Batch& batch, nn::Module& model,
                                  const Criterion& criterion, optim::Optimizer* optimizer,
                                  const PipelineOptions& options);

  // Continues texts with the boosted model, as nn::Generate does, under any plugin: with pipeline
  // stages, tensor parallelism or sharded parameters. Every rank passes the same arguments and gets
  // the same tokens. Under sequence parallelism set use_cache = false, and window_multiple to
  // twice its ranks. Collective.
  //
  //   auto texts = booster.generate({prompt}, boosted.model, {.max_tokens = positions});
  std::vector<std::vector<int64_t>> generate(const std::vector<std::vector<int64_t>>& prompts,
                                             nn::Module& model,
                                             const nn::GenerateOptions& options = {});

  // While the result lives, each `num_micro_batches` calls of backward (or execute_pipeline with an
  // optimizer) are one window (accumulation.h). Throws Error while another window is open.
  [[nodiscard]] Accumulation accumulate(int64_t num_micro_batches);

  // While the handle lives, the values of boosted.criterion add up to the mean over a whole window
  // of micro-batches. `num_targets`: targets that count in this rank's micro-batches of the window;
  // data::Loader::Windows knows them, and nn::CountTargets counts those of a batch of your own.
  // Neither the loop nor accumulate divides by the number of micro-batches. Collective, once per
  // window.
  //
  //   const Accumulation accumulation = booster.accumulate(n);
  //   for (const data::Window& window : loader.Windows(n)) {
  //     const auto open = booster.accumulation_window(window.num_targets);
  //     for (const data::Batch& batch : window.batches) {
  //       booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
  //                        boosted.optimizer);
  //     }
  //     boosted.optimizer.step();
  //     boosted.optimizer.zero_grad();
  //   }
  //
  // step() throws Error, on every rank, if the micro-batches had another number of targets.
  [[nodiscard]] std::shared_ptr<void> accumulation_window(int64_t num_targets);

  // While the handle lives, backward accumulates without reducing over ranks. accumulate does this
  // for a loop whose windows have equally many micro-batches.
  [[nodiscard]] std::shared_ptr<void> no_sync() { return plugin_.NoSync(); }

  // While the handle lives, the model has the weights to evaluate (optim::EvaluationWeights): with
  // schedule-free optimizers the averages, with all others its own. Null for the latter.
  //
  //   const auto averages = booster.evaluation_weights();
  //   const Tensor outputs = booster.plugin().Evaluate(boosted.model, batch.inputs);
  //
  // A further call returns the same handle. save_model and save_adapter need none: they always
  // write these weights. backward, step, training states and loads throw Error while the handle
  // lives. Collective, between step() and the next backward; so is the end of the handle.
  [[nodiscard]] std::shared_ptr<void> evaluation_weights();

  // Saves everything listed in training_state.h as `folder`/step-NNNNNNNN. Then removes all but the
  // newest options.keep checkpoints up to this step. Checkpoints of later steps stay, and none is
  // overwritten.
  //
  // The folder is made if it is missing; its parent must exist. This booster locks it (run_lock.h)
  // until it is destroyed or saves to another folder. While it is locked, a save of another run to
  // it returns FailedPrecondition. Only RealFileSystem() has locks. Once this call returns ok (with
  // use_async: once wait_for_saves does), the checkpoint survives a power cut.
  //
  // If this step's folder exists: AlreadyExists if it is a valid checkpoint. It is renamed, and
  // never deleted, if it is damaged, is not a checkpoint of that step, or was skipped by resume.
  //
  // Collective, between step() and the next backward, with the same arguments; the same status on
  // every rank. Throws Error before boost.
  absl::Status save_training_state(const std::string& folder, const RunPosition& position,
                                   const SaveOptions& options = {});

  // Loads the newest checkpoint of the folder into the boosted objects. If it turns out to be
  // damaged, it is skipped and the next older one is tried. Does not change the folder. If nothing
  // can be loaded, nothing has changed, and the status is:
  //
  //   NotFound          no checkpoint: start anew
  //   DataLoss          all checkpoints are damaged
  //   InvalidArgument   the checkpoint is whole but has another model, optimizer or identity
  //                     (run_config.h); lists the differences
  //   Unimplemented     the newest checkpoint has a newer format
  //   PermissionDenied  the checkpoint cannot be opened
  //   Unavailable       the same, for now (too many open files, no memory)
  //
  // Collective, after boost and before the first step; the same result on every rank. Throws Error
  // before boost.
  absl::StatusOr<Resumed> resume(
      const std::string& folder,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());

  // Writes the model's weights as Hugging Face libraries read them (checkpoint/hf/hf_weights.h):
  // the same folder under every plugin. AlreadyExists if the folder exists. This and the calls
  // below are collective over the plugin's ranks, after boost; every rank gets the same status.
  //
  //   OkOrThrow(booster.save_model("out", {.config_json = config}));
  absl::Status save_model(const std::string& path, const SaveModelOptions& options = {});
  // Reads such a folder, of any dtype and from any program, into the model and the optimizer's
  // master weights. Optimizer states stay. On an error, which lists everything that does not fit,
  // nothing has changed.
  absl::StatusOr<checkpoint::LoadReport> load_model(const std::string& path,
                                                    const LoadModelOptions& options = {});
  // Writes an adapter of enable_lora as PEFT has it: a new folder with adapter_model.safetensors
  // and adapter_config.json, the same bytes under every plugin. Throws Error for an unknown
  // adapter.
  absl::Status save_adapter(const std::string& path, const SaveAdapterOptions& options = {});
  // Reads the values of such a folder into an adapter of the same layers and ranks. On an error,
  // which lists everything that does not fit, nothing has changed.
  absl::Status load_adapter(
      const std::string& path, const std::string& adapter = "default",
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());
  // Adds an adapter to the weights, W + scale * B A in f32 (f64 for f64; for DoRA normalised),
  // rounded once to the weights' dtype: the same bits under every plugin. No adapter is active
  // then, and save_model writes a plain model. unmerge_adapter puts the old bits back. Throws Error
  // for an unknown adapter, another active one, and a quantized base. Collective.
  void merge_adapter(const std::string& adapter = "default");
  void unmerge_adapter(const std::string& adapter = "default");
  // Saves all states of the optimizer, its options, master weights and step counts, as a folder in
  // the format of checkpoints, which loads under any plugin and number of ranks. With save_model
  // and save_lr_scheduler this is a training state except for random state, loss scale and
  // position. To continue a run use save_training_state.
  absl::Status save_optimizer(const std::string& path, const FileOptions& options = {});
  // InvalidArgument lists everything that does not fit (another optimizer, groups, shapes).
  // DataLoss for damaged files. In both cases nothing has changed.
  absl::Status load_optimizer(
      const std::string& path,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());
  // Saves and loads the position of the learning-rate schedule given to boost. Throws Error without
  // one.
  absl::Status save_lr_scheduler(const std::string& path, const FileOptions& options = {});
  absl::Status load_lr_scheduler(
      const std::string& path,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem());

  // For saves with use_async: waits for the running save and returns its status, once; the same on
  // every rank. Does not communicate.
  //
  // Every save first waits for the previous one. If that failed and wait_for_saves has not returned
  // its error, the next save of any kind returns it and saves nothing. resume and all loads also
  // wait for the running save, and leave its status. The destructor waits, too, and prints an error
  // that was not returned.
  absl::Status wait_for_saves();
  // The status that wait_for_saves would return; nothing while a save is running. Ranks may see the
  // end of a save at different times.
  std::optional<absl::Status> save_status() const;

  // Checks that the disk has room for `checkpoints` training states in an existing folder.
  // ResourceExhausted with the numbers if not; NotFound if there is no such folder. Call it after
  // the first step, when the optimizer has its states. Collective.
  absl::Status check_space(
      const std::string& folder, int64_t checkpoints = 2,
      const std::shared_ptr<checkpoint::FileSystem>& files = checkpoint::RealFileSystem()) const;

  Plugin& plugin() { return plugin_; }

 private:
  friend class GraphedMicroStep;
  // Throws Error for a loop whose step would be wrong.
  void BeforeStep() override;
  void AfterStep() override { ++*num_steps_; }
  // The micro-batch that begins now. Begins a new window if the last one is complete.
  internal::MicroBatch BeginMicroBatch();
  // Notes that it ran; `loss` has been multiplied by its share.
  void EndMicroBatch(const Tensor& loss);
  // Runs backward of the loss times the micro-batch's share, and returns this product. Throws Error
  // for the mistakes that backward refuses.
  Tensor RunBackward(const Tensor& loss, optim::Optimizer& optimizer,
                     const internal::MicroBatch& micro);
  // Throws Error before boost, and once a boosted object is gone.
  void CheckBoosted(const char* what) const;
  void CheckScheduler(const char* what) const;
  // Throws Error while the model has the weights to evaluate.
  void CheckTrains(const char* what) const;
  // Runs the body of a public method.
  template <typename Body>
  auto InCall(const char* call, const Body& body);
  // The same for a save. In a dry run (plan/dry_run.h) the body does not run: nothing is written.
  template <typename Body>
  absl::Status InSave(const char* call, const Body& body);
  // What saves and loads work on. For calls that CheckBoosted let pass.
  TrainingParts Parts();

  Plugin& plugin_;
  Watched<Plugin> watched_plugin_;
  RunConfig config_;
  TraceLane* compute_lane_ = nullptr;
  Watched<nn::Module> model_;
  Watched<optim::Optimizer> optimizer_;
  Watched<optim::LrScheduler> scheduler_;
  std::shared_ptr<LossNormalizer> normalizer_;  // after boost
  std::unique_ptr<StepLog> log_;                // if there is a trace
  std::vector<Subscription> listens_;           // this object and the log
  // Steps that are done, those before resume included; the model's modules name the next one.
  std::shared_ptr<int64_t> num_steps_ = std::make_shared<int64_t>(0);
  // Of accumulate; the Accumulation has it, too.
  std::shared_ptr<internal::Window> window_ = std::make_shared<internal::Window>();
  std::weak_ptr<void> evaluation_;  // the handle of evaluation_weights
  std::unique_ptr<Adapters> adapters_;
  std::unique_ptr<TrainingCheckpoints> checkpoints_;
  // The last member: its destructor waits for the running save, which may use the others.
  std::unique_ptr<SaveRunner> saves_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_BOOSTER_H_
