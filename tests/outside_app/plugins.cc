// SPDX-License-Identifier: Apache-2.0

#include "plugins.h"

#include <cstdint>

#include "local_sgd.h"

namespace outside {
namespace {

// So small that the model fills several buckets.
constexpr int64_t kBucketBytes = 4096;

}  // namespace

NamedPlugin::NamedPlugin(const std::string& name, const apogee::comm::World& world,
                         const PluginSettings& settings)
    : world_(world) {
  const apogee::Precision precision = settings.precision;
  const double max_norm = settings.max_norm;
  if (name == "single") {
    plugin_ = std::make_unique<apogee::SingleRankPlugin>(
        apogee::TrainingOptions{.precision = precision, .max_norm = max_norm});
  } else if (name == "ddp") {
    plugin_ = std::make_unique<apogee::DdpPlugin>(
        world.group(),
        apogee::TrainingOptions{
            .precision = precision, .max_norm = max_norm, .bucket_bytes = kBucketBytes});
  } else if (name == "zero1" || name == "zero2") {
    plugin_ = std::make_unique<apogee::LowLevelZeroPlugin>(
        world.group(),
        apogee::TrainingOptions{
            .precision = precision, .max_norm = max_norm, .bucket_bytes = kBucketBytes},
        apogee::LowLevelZeroOptions{.stage = name == "zero1" ? 1 : 2});
  } else if (name == "local_sgd") {
    plugin_ = std::make_unique<LocalSgdPlugin>(
        world.group(), apogee::TrainingOptions{.precision = precision, .max_norm = max_norm},
        LocalSgdOptions{.every = 1});
  } else if (name == "gemini" || name == "offload") {
    MakeGemini(settings, name == "offload");
  } else if (name.starts_with("tp2z")) {
    MakeHybrid(settings, 2, 1, name.back() - '0');
  } else if (name.starts_with("pp2t")) {
    MakeHybrid(settings, name.back() - '0', 2, 1);
  } else {
    apogee::Throw("there is no plugin \"", name, "\"");
  }
}

void NamedPlugin::MakeGemini(const PluginSettings& settings, bool offload) {
  apogee::GeminiOptions options;
  if (offload) options.placement = {.offload_optim_frac = 1, .offload_param_frac = 0.5};
  plugin_ = std::make_unique<apogee::GeminiPlugin>(
      world_.group(),
      apogee::TrainingOptions{.precision = settings.precision, .max_norm = settings.max_norm},
      options);
}

void NamedPlugin::MakeHybrid(const PluginSettings& settings, int tp, int pp, int stage) {
  apogee::HybridParallelOptions options{.tp_size = tp, .pp_size = pp, .stage = stage};
  if (tp > 1) options.plan = PlanFor(settings.model);
  if (pp > 1) options.num_microbatches = 2;
  plugin_ = std::make_unique<apogee::HybridParallelPlugin>(
      world_,
      apogee::TrainingOptions{.precision = settings.precision,
                              .max_norm = settings.max_norm,
                              .bucket_bytes = kBucketBytes},
      options);
  has_pipeline_ = pp > 1;
}

}  // namespace outside
