// SPDX-License-Identifier: Apache-2.0

// TrainingSetup: what `apogee plan` prices, without the plugin.
//
//   APOGEE_ASSIGN_OR_RETURN(plan::TrainingSetup setup, plan::SetupOf("llama2-7b"));
//   setup.batch = 64;
//   setup.training.precision = Precision::kBf16;
#ifndef APOGEE_PLAN_TRAINING_SETUP_H_
#define APOGEE_PLAN_TRAINING_SETUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/status.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/training_options.h"

namespace apogee {
class Plugin;  // plugins/plugin.h
}

namespace apogee::plan {

struct TrainingSetup {
  std::string model = {};  // for messages
  // Makes the model without values: tokens i64 [B, T] -> logits [B, T, vocabulary]. `recompute`:
  // with activation checkpointing of its layers.
  std::function<std::unique_ptr<nn::Module>(bool recompute)> make_model = nullptr;
  bool can_recompute = true;
  int64_t num_layers = 0;    // bounds the stages of a pipeline
  int64_t num_kv_heads = 0;  // what tp must divide; 0: the model is not cut
  int64_t num_experts = 0;   // of a layer; ep must divide them
  int64_t max_tokens = 0;    // of a sequence
  int64_t vocab_size = 256;
  // A program's own training, instead of the ordinary loop with make_model: `plugin` is the one to
  // boost with, and before_step(step) is to be called before each of two steps. The rest of this
  // struct is then for messages, but for the sizes that candidates have to divide. Pipelines are
  // tried if num_layers is not 0.
  std::function<void(comm::World& world, Plugin& plugin,
                     const std::function<void(int)>& before_step)>
      train = nullptr;

  // What a dry run assumes of sizes that depend on values, in words; "": there are none.
  std::string assumption = {};

  int64_t batch = 8;       // samples of a step, of all ranks together
  int64_t accumulate = 1;  // micro-batches of a step
  int64_t tokens = 1024;   // of a sample
  bool recompute = false;
  // Not nothing: an adapter of the model is trained (Booster::enable_lora).
  std::optional<nn::LoraOptions> lora = {};
  TrainingOptions training = TrainingOptions();
  std::string optimizer = "adamw";
  optim::OptionMap optimizer_options = {};
};

// Options of a model that are not in its config.json: those of nn::DecoderConfig.
struct ModelOptions {
  int64_t head_chunks = 0;
  bool recompute_activations = false;  // in setups without recompute
};

// A setup of the model that a config.json describes. `path` is for messages. Errors as of
// nn::MakeHfModel, and InvalidArgument for a model that takes no tokens, or not these options.
absl::StatusOr<TrainingSetup> SetupOfConfig(const std::string& json, const std::string& path,
                                            const ModelOptions& options = {});

// A well-known model by its name: its config.json, and a setup. NotFound for another name; lists
// the names.
absl::StatusOr<std::string> ConfigOf(const std::string& name);
absl::StatusOr<TrainingSetup> SetupOf(const std::string& name, const ModelOptions& options = {});
// The names, sorted.
std::vector<std::string> KnownModels();

// InvalidArgument that lists all sizes that do not fit.
absl::Status CheckSetup(const TrainingSetup& setup);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_TRAINING_SETUP_H_
