// SPDX-License-Identifier: Apache-2.0

// The plugins of the matrix, in variants that differ in the options.
//
//   for (const PluginVariant& variant : LibraryPlugins()) ...
//   MadePlugin made = variant.make(world, {.training = {.max_norm = 1}});
//   Booster booster(*made.plugin);
#ifndef APOGEE_MATRIX_PLUGINS_H_
#define APOGEE_MATRIX_PLUGINS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/training_options.h"

namespace apogee::matrix {

struct PluginSettings {
  TrainingOptions training = TrainingOptions();
  int64_t num_parameters = 0;  // of the whole model
  // For hybrid plugins; if not set, the model's own plan.
  std::optional<nn::parallel::ParallelPlan> plan = {};
};

// A plugin; also as what it is, because the matrix inspects more than Plugin tells.
struct MadePlugin {
  template <typename Made>
  MadePlugin(std::unique_ptr<Made> made) : plugin(std::move(made)) {}
  MadePlugin(std::unique_ptr<HybridParallelPlugin> made)
      : hybrid(made.get()), plugin(std::move(made)) {}
  MadePlugin(std::unique_ptr<GeminiPlugin> made) : gemini(made.get()), plugin(std::move(made)) {}

  const HybridParallelPlugin* hybrid = nullptr;  // null for other plugins
  const GeminiPlugin* gemini = nullptr;          // null for other plugins
  std::unique_ptr<Plugin> plugin;
};

struct PluginVariant {
  std::string name;
  std::vector<int> worlds;
  std::vector<std::string> precisions;
  // True for a plugin with its default options. The others vary options and run in fewer
  // combinations.
  bool main = false;
  // The world must outlive the plugin.
  std::function<MadePlugin(const comm::World&, const PluginSettings&)> make;
  // For bf16 and fp16 runs: if false, the one-rank run has no master weights either.
  bool master_weights = true;
  // Tensor-parallel size and number of pipeline stages. These pp * tp ranks train on the same
  // samples; ranks of one tensor-parallel group are consecutive.
  int tp = 1;
  int pp = 1;
  // Sequence-parallel size: this many such groups shard sequences and train on the same samples,
  // too.
  int sp = 1;
  // Expert-parallel size: data-parallel ranks that share the experts.
  int ep = 1;
  // Of a call of execute_pipeline, for models whose loss depends on them.
  int num_micro_batches = 1;
  std::vector<std::string> workloads = {"fed",     "gpt2", "llama", "cnn",
                                        "encoder", "gru",  "moe",   "moe_aux"};
  // True for hybrid plugins, which have too many combinations to run them all.
  bool is_hybrid = false;
  int ranks_per_sample() const { return pp * tp * sp; }
};

std::vector<PluginVariant> LibraryPlugins();

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_PLUGINS_H_
