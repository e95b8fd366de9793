// SPDX-License-Identifier: Apache-2.0

// Every way of running the loop, by name: "single", "ddp", "zero1", "zero2", "gemini", "offload",
// "local_sgd", "tp2z0" to "tp2z3" (tensor parallelism and the stage of ZeRO), "pp2t1" and "pp2t2"
// (pipelines of two stages, of one or two ranks each).
//
//   NamedPlugin plugin("tp2z1", world, {.precision = apogee::Precision::kF64, .model = config});
//   Booster booster(plugin.plugin());
#ifndef OUTSIDE_APP_PLUGINS_H_
#define OUTSIDE_APP_PLUGINS_H_

#include <memory>
#include <string>

#include "apogee/apogee.h"
#include "language_model.h"

namespace outside {

struct PluginSettings {
  apogee::Precision precision = apogee::Precision::kF32;
  double max_norm = 0;
  ModelConfig model = {};
};

class NamedPlugin {
 public:
  // Throws Error for an unknown name. The world must outlive it.
  NamedPlugin(const std::string& name, const apogee::comm::World& world,
              const PluginSettings& settings);

  apogee::Plugin& plugin() const { return *plugin_; }
  bool has_pipeline() const { return has_pipeline_; }

 private:
  void MakeGemini(const PluginSettings& settings, bool offload);
  void MakeHybrid(const PluginSettings& settings, int tp, int pp, int stage);

  const apogee::comm::World& world_;
  std::unique_ptr<apogee::Plugin> plugin_;
  bool has_pipeline_ = false;
};

}  // namespace outside

#endif  // OUTSIDE_APP_PLUGINS_H_
