// SPDX-License-Identifier: Apache-2.0

// LowLevelZeroPlugin: data parallelism with optimizer states (stage 1) and gradients (stage 2)
// sharded over the ranks (ZeRO; Rajbhandari et al., SC 2020). Parameters stay whole on every rank.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     const TrainingOptions training{.precision = Precision::kBf16, .max_norm = 1.0};
//     LowLevelZeroPlugin plugin(world.group(), training, {.stage = 2});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);       // any optimizer of the registry
//     ... the ordinary loop ...
//   });
//
// The update equals that of one rank with the whole batch, for every optimizer. Statistics of whole
// tensors (Adafactor, CAME, Lamb, ScaledAdam, GaLore, 8-bit blocks, the norm that max_norm clips)
// are summed over the shards. The optimizer is bound in place: it keeps its groups, options, states
// and schedulers.
//
// Bytes per rank, for n ranks and N elements:
//
//   stage 1:  N b + N g + N s / n
//   stage 2:  N b + N g / n + N s / n
//
//   b  bytes of a parameter's element
//   g  bytes of a gradient's element: 4 for bf16 and fp16, else b
//   s  bytes of the states of an element, with masters (4 for bf16 and fp16)
//
// One or two open chunks of about bucket_bytes come on top.
//
// After backward, gradients are on shards, in the optimizer's views. Parameter::grad() is absent,
// and Parameter::zero_grad() clears both. To change gradients use hooks (Parameter::AddGradHook),
// which see this rank's gradients. Gradients of parameters that the optimizer does not hold are
// averaged and stay in Parameter::grad().
//
// A step sends each rank's updated shard to all ranks; reading a parameter waits for it. Missing
// gradients and accumulation work as in DdpPlugin.
#ifndef APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_
#define APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/data_parallel.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

namespace chunk {
class ParameterChunks;
}  // namespace chunk
struct CutParameters;

struct LowLevelZeroOptions {
  int stage = 2;  // 1 or 2
  // Sum gradients over the ranks in this precision. Default: the gradients' own.
  std::optional<Precision> communication_dtype = {};
  // Gather updated parameters while the next forward is already running.
  bool overlap_gather = true;
  // bf16, fp16: keep f32 masters. Without masters a step rounds its result and loses the remainder.
  bool master_weights = true;
  // Keep states and masters in host memory.
  bool offload_states = false;
  static std::vector<optim::OptionField<LowLevelZeroOptions>> Fields();
};

class LowLevelZeroPlugin : public DataParallelPlugin {
 public:
  // `group`: the ranks to shard over; null for one rank. Throws Error listing every bad option.
  explicit LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training = {},
                              const LowLevelZeroOptions& options = {});
  // Internal: for a plugin that has cut the parameters (plugins/sharding/cut_parameters.h).
  LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const LowLevelZeroOptions& options, const CutParameters& cut);

  std::string name() const override { return "low_level_zero"; }
  // After boost: the chunks that hold the parameters (chunk/parameter_chunks.h).
  const chunk::ParameterChunks& chunks() const;
  // After boost: the context that allocates the states. It is the model's unless offload_states.
  const ContextPtr& state_context() const;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_
