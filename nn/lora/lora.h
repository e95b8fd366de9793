// SPDX-License-Identifier: Apache-2.0

// Adapters of low rank (Hu et al., "LoRA", 2021) for the nn::Linear and nn::Embedding layers of a
// model, as PEFT has them. The model's own parameters are frozen; an optimizer then trains the
// factors only.
//
//   model.Initialize(context, {.seed = 1});
//   nn::AddLora(model, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
//   optim::AdamW optimizer(model.Parameters(), options);      // frozen parameters have no states
//   auto boosted = booster.boost(model, optimizer, ...);
//
// A layer "h.0.q_proj" gets two parameters, or with DoRA three. At first the model's
// results do not change.
//
//   h.0.q_proj.lora_A.default.weight                 [rank, in], uniform in +-1 / sqrt(in)
//   h.0.q_proj.lora_B.default.weight                 [out, rank], zeros
//   h.0.q_proj.lora_magnitude_vector.default.weight  [out], the norms of the rows of its weight
//
// nn/lora/adapter.h has the formulas. Under tensor parallelism factors are cut with their layer.
// Booster::save_adapter writes PEFT's folders.
#ifndef APOGEE_NN_LORA_LORA_H_
#define APOGEE_NN_LORA_LORA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/nn/layers.h"
#include "apogee/nn/quantized/quantize.h"

namespace apogee::nn {

// Which biases are trained, too.
enum class LoraBias { kNone, kAll, kLoraOnly };

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;  // scale = alpha / rank
  // Ends of the names of layers, after a dot: "q_proj", "attn.c_attn"; or one "all-linear": every
  // nn::Linear but the one that computes logits.
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0;
  bool use_rslora = false;  // scale = alpha / sqrt(rank) (Kalajdzievski, 2023)
  bool use_dora = false;
  // Other ranks and alphas for layers, by ends of their names. Of several that match, the first in
  // alphabetical order counts.
  std::map<std::string, int64_t> rank_pattern = {};
  std::map<std::string, double> alpha_pattern = {};
  // Ends of the names of modules whose own parameters are trained and saved whole.
  std::vector<std::string> modules_to_save = {};
  LoraBias bias = LoraBias::kNone;
  uint64_t seed = 0;  // of A
  // If set, QuantizeLinears before: the base is held in 4 or 8 bits. Modules to save stay whole.
  // For the first adapter of a model.
  std::optional<QuantizeOptions> quantize = {};
};

// Adds an adapter and freezes everything else, except what earlier adapters have left trainable.
// Call it before the optimizer is made and before boost. Factors are made like the layer's weight:
// at once, lazily, or later by Initialize.
// Throws Error that lists every problem, with the model unchanged:
//   - targets that match no layer (with the nearest names), patterns and modules that match nothing
//   - a rank below 1 or above a layer's sizes, an alpha or a dropout out of range
//   - an adapter of this name, a boosted model, DoRA for a layer whose weight has not been made
void AddLora(Module& model, const LoraOptions& options, const std::string& adapter = "default");

// The adapted layers of a model, by their full names.
std::vector<std::pair<std::string, Adaptable*>> AdaptedLayers(Module& model);

// Only these adapters take part from now on; none: the model without adapters. Frozen or not, all
// keep their values. Throws Error for an unknown name. An adapter with DoRA must be the only active
// one of a layer: forward throws otherwise.
void SetActiveAdapters(Module& model, const std::vector<std::string>& adapters);

// The names and shapes of the tensors that AddLora would add or train, as AdapterTensors names
// them. Throws Error as AddLora does. Changes nothing.
std::map<std::string, Shape> PlannedTensors(Module& model, const LoraOptions& options,
                                            const std::string& adapter = "default");

// The parameters of an adapter, in the order of the model, by their names in PEFT's files without
// "base_model.model.": factors, biases, and the modules to save. `options`: of the adapter.
std::vector<std::pair<std::string, ParameterPtr>> AdapterTensors(Module& model,
                                                                 const LoraOptions& options,
                                                                 const std::string& adapter);

// A layer that an adapter is merged into.
struct MergeLayer {
  std::string name;
  Adaptable* layer;
  const LoraFactors* factors;
};
// The layers of an adapter, in the order of the model. Throws Error that lists every problem: a
// name that no adapter has, another adapter that is active, weights that are quantized.
std::vector<MergeLayer> LayersToMerge(Module& model, const std::string& adapter);

// The weights of a model with an adapter merged into them, until Unmerge or for good:
//
//   nn::MergedAdapter merged(model, "default");      // W := W + scale * B A
//   ... save the model, or run it without the cost of the adapter ...
//   merged.Unmerge();                                // the old bits: they have been kept
//
// The sum is in f32 (f64 for f64) and rounded once to the weight's dtype; for DoRA it is the
// normalised one. The adapter does not take part meanwhile. Every value must be on this rank
// (not under ZeRO 3), and with DoRA whole (not under tensor parallelism): Booster::merge_adapter
// works under every plugin. Throws Error as LayersToMerge does, with the model unchanged.
class MergedAdapter {
 public:
  MergedAdapter(Module& model, const std::string& adapter);
  MergedAdapter(const MergedAdapter&) = delete;
  MergedAdapter& operator=(const MergedAdapter&) = delete;
  // Once.
  void Unmerge();
  // Drops the old values: the merged weights stay.
  void Keep() { bases_.clear(); }

 private:
  Module& model_;
  std::string adapter_;
  std::vector<std::pair<ParameterPtr, Tensor>> bases_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_LORA_LORA_H_
