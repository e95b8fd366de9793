// SPDX-License-Identifier: Apache-2.0

// The plugins of the matrix, with the options that change how they work.
//
//   for (const PluginVariant& variant : PluginVariants()) ...
//   std::unique_ptr<Plugin> plugin = FindPlugin("ddp").make(world, {.precision = "f32"});
#ifndef APOGEE_TOOLS_MATRIX_PLUGINS_H_
#define APOGEE_TOOLS_MATRIX_PLUGINS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/optim/loss_scaler.h"
#include "apogee/plugins/plugin.h"

namespace apogee::tools {

struct PluginSettings {
  std::string precision;
  double max_norm = 0;
  int64_t bucket_bytes = 0;
  int64_t num_parameters = 0;  // of the whole model
  optim::LossScalerOptions loss_scaler = {};
  // Of hybrid plugins; nothing: the one that comes with the model.
  std::optional<nn::parallel::ParallelPlan> plan = {};
};

struct PluginVariant {
  std::string name;
  std::vector<int> worlds;
  std::vector<std::string> precisions;
  // A plugin as it comes; the others vary its options and run in fewer combinations.
  bool main = false;
  // The world must outlive the plugin.
  std::function<std::unique_ptr<Plugin>(const comm::World&, const PluginSettings&)> make;
  // Of bf16 and fp16 runs. Without, the one-rank run has none either.
  bool master_weights = true;
  // So many ranks, tp of them next to each other, hold the parts of one model and train on the same
  // samples.
  int tp = 1;
  int pp = 1;
  // So many such groups share sequences, and train on the same samples, too.
  int sp = 1;
  std::vector<std::string> workloads = {"fed", "gpt2", "llama"};
  // Of the family whose combinations are too many for the matrix to have all of them.
  bool is_hybrid = false;
  int ranks_per_sample() const { return pp * tp * sp; }
};

const std::vector<PluginVariant>& PluginVariants();
// Throws Error for an unknown name.
const PluginVariant& FindPlugin(const std::string& name);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_PLUGINS_H_
