// SPDX-License-Identifier: Apache-2.0

// GeminiPlugin: data parallelism with parameters, gradients and optimizer states sharded over the
// ranks (ZeRO stage 3; Rajbhandari et al., SC 2020). A module's parameters are whole on a rank only
// while the module runs.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     model.InitializeLazily(world.context(), {.seed = 1});  // no memory yet
//     GeminiPlugin plugin(world.group(), {.precision = Precision::kBf16, .max_norm = 1.0});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);       // any optimizer of the registry
//     ... the ordinary loop ...
//   });
//
// The update equals that of one rank with the whole batch. Optimizers are bound to shards as in
// LowLevelZeroPlugin.
//
// Parameters are stored in chunks, each parameter in one. Each module has ceil(bytes /
// bucket_bytes) chunks, separate ones for trainable and frozen parameters. One all-gather per chunk
// brings its values before the module's forward and before the module's part of backward; the
// gathered values are freed afterwards. plugins/gemini/module_windows.h has the rules for modules,
// and for ranks whose forwards differ.
//
// Bytes per rank, for n ranks and N elements:
//
//   (N b + N g + N s) / n, and the whole chunks of the modules that are running
//
//   b  bytes of a parameter's element
//   g  bytes of a gradient's element: 4 for bf16 and fp16, else b
//   s  bytes of the states of an element, with masters (4 for bf16 and fp16)
//
// A chunk is padded to a multiple of 8 elements per rank, and further so that no two chunks have
// the same size.
//
// boost receives rank 0's values, parameter by parameter and in one order on all ranks, keeps this
// rank's part and frees the rest. After nn::Module::InitializeLazily no rank ever holds more than
// its shards, the masters made from f32 values, and one whole parameter. So you can build a model
// larger than a rank's memory. Values and masters are those of Initialize, bit for bit. Only rank 0
// computes lazy values; the others receive them. (Initialize makes the model whole on every rank
// first.)
//
// Between uses Parameter::data() is this rank's part, of shape [n] (LayoutOf), and
// Parameter::value() throws Error. Under no_sync gradients stay local, whole on every rank, and add
// up; results are exact. A trainable parameter that the optimizer does not hold stays whole, so
// another optimizer may step on it.
//
// LOMO and AdaLomo update inside backward. Before each gather all ranks reduce, update and free the
// chunks whose gradients every rank has. This costs one more small collective per gather. The
// remaining chunks follow at the end of backward. Where every rank uses every parameter, gradients
// then do not take N g / n bytes: they take one parameter and the chunks that are completed between
// two gathers, usually one module's. With max_norm, with fp16, or with a NonFinitePolicy other than
// kProceed, backward walks over the graph twice, first for the norm, and gathers twice as often.
//
// plugins/gemini/chunk_homes.h says where chunks live (device, host, disk). For tensor parallelism
// use HybridParallelOptions::stage = 3. Not supported yet: sums in another dtype
// (communication_dtype) and runs without masters (master_weights = false).
#ifndef APOGEE_PLUGINS_GEMINI_H_
#define APOGEE_PLUGINS_GEMINI_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/data_parallel.h"
#include "apogee/plugins/gemini/placement.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

namespace chunk {
class ChunkRecord;
class ShardedParameters;
}  // namespace chunk
class ChunkHomes;
struct CutParameters;

struct GeminiOptions {
  // Where chunks live, and which values stay gathered.
  PlacementOptions placement = PlacementOptions();
  // Those of the placement.
  static std::vector<optim::OptionField<GeminiOptions>> Fields();
};

class GeminiPlugin : public DataParallelPlugin {
 public:
  // `group`: the ranks to shard over; null for one rank. Throws Error listing every bad option;
  // training.overlap must be true.
  explicit GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training = {},
                        const GeminiOptions& options = {});
  // Internal: for a plugin that has cut the parameters (plugins/sharding/cut_parameters.h). Keys of
  // buckets count only for parameters that the optimizer does not hold.
  GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training, const GeminiOptions& options,
               const CutParameters& cut);

  std::string name() const override { return "gemini"; }
  comm::GroupPtr gather_group() const override;
  // After boost: the chunks that hold the parameters (chunk/sharded_parameters.h), and their homes
  // (gemini/chunk_homes.h: device, host, disk).
  const chunk::ShardedParameters& chunks() const;
  const ChunkHomes& homes() const;
  // When each chunk was whole on this rank's device in the last step (chunk/sharded_parameters.h).
  const chunk::ChunkRecord& chunk_record() const;
  // After boost: the context of the host's memory, if something is offloaded; else null.
  const ContextPtr& host() const;
  // The peak of this rank's memory on the device that is no parameter, gradient or optimizer state.
  int64_t peak_other_bytes() const;
  const TrainingOptions& training_options() const;
  const GeminiOptions& options() const;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_H_
