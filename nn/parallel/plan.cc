// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/plan.h"

#include <typeinfo>
#include <utility>

#include "apogee/core/text/enum_names.h"

namespace apogee::nn::parallel {
namespace {

using enum ParallelStyle;

constexpr EnumName<SequenceMode> kModeNames[] = {{SequenceMode::kNone, "none"},
                                                 {SequenceMode::kNone, ""},
                                                 {SequenceMode::kSplitGather, "split_gather"},
                                                 {SequenceMode::kAllToAll, "all_to_all"},
                                                 {SequenceMode::kRingAttention, "ring_attn"}};

constexpr const char* kHeads = "heads";
constexpr const char* kKeyValueHeads = "key-value heads";

// The plan for a model that is a child, named `prefix`, of another model.
ParallelPlan Below(const std::string& prefix, ParallelPlan plan) {
  if (prefix.empty()) return plan;
  for (PlanRule& rule : plan.rules) rule.pattern.insert(0, prefix + ".");
  plan.output_module.clear();
  plan.sequence_module = prefix;
  return plan;
}

}  // namespace

const char* ParallelStyleName(ParallelStyle style) {
  static constexpr const char* kNames[] = {"column",     "column_gather", "row",       "row_split",
                                           "vocabulary", "dropout",       "attention", "parameter"};
  return kNames[static_cast<size_t>(style)];
}

const char* Name(SequenceMode mode) { return NameOf<SequenceMode>(kModeNames, mode); }

absl::StatusOr<SequenceMode> ParseSequenceMode(const std::string& text) {
  return ParseName<SequenceMode>("sp_mode", kModeNames, text);
}

ParallelPlan Gpt2Plan(const Gpt2Config& config) {
  const int64_t heads = config.n_head;
  return {.name = "gpt2",
          .rules = {{.pattern = "transformer.wte", .style = kVocabulary},
                    {.pattern = "transformer.h.*.attn.c_attn",
                     .style = kColumn,
                     .sections = 3,
                     .units = heads,
                     .unit_name = kHeads},
                    {.pattern = "transformer.h.*.attn.c_proj",
                     .style = kRow,
                     .units = heads,
                     .unit_name = kHeads},
                    {.pattern = "transformer.h.*.attn.core",
                     .style = kAttention,
                     .units = heads,
                     .unit_name = kHeads},
                    {.pattern = "transformer.h.*.mlp.c_fc", .style = kColumn},
                    {.pattern = "transformer.h.*.mlp.c_proj", .style = kRow},
                    {.pattern = "lm_head", .style = kVocabulary}},
          .output_module = "lm_head"};
}

ParallelPlan LlamaPlan(const LlamaConfig& config) {
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const std::string layer = "model.layers.*.";
  const auto attention = [&layer](const std::string& projection, ParallelStyle style, int64_t units,
                                  const char* unit_name) {
    return PlanRule{.pattern = layer + "self_attn." + projection,
                    .style = style,
                    .units = units,
                    .unit_name = unit_name};
  };
  return {.name = "llama",
          .rules = {{.pattern = "model.embed_tokens", .style = kVocabulary},
                    attention("q_proj", kColumn, heads, kHeads),
                    attention("k_proj", kColumn, kv_heads, kKeyValueHeads),
                    attention("v_proj", kColumn, kv_heads, kKeyValueHeads),
                    attention("o_proj", kRow, heads, kHeads),
                    attention("core", kAttention, kv_heads, kKeyValueHeads),
                    {.pattern = layer + "mlp.gate_proj", .style = kColumn},
                    {.pattern = layer + "mlp.up_proj", .style = kColumn},
                    {.pattern = layer + "mlp.down_proj", .style = kRow},
                    {.pattern = "lm_head", .style = kVocabulary}},
          .output_module = "lm_head"};
}

ParallelPlan MlpPlan(const MlpConfig& config) {
  ParallelPlan plan{.name = "mlp", .rules = {}};
  const size_t num_layers = config.sizes.size() - 1;
  for (size_t i = 0; i < num_layers; ++i) {
    const bool left_over = i % 2 == 0 && i + 1 == num_layers;
    if (left_over && num_layers > 1) continue;
    plan.rules.push_back({.pattern = "layers." + std::to_string(i),
                          .style = left_over ? kColumnGather : (i % 2 == 0 ? kColumn : kRow)});
  }
  return plan;
}

std::optional<ParallelPlan> ShippedPlan(Module& model) {
  std::optional<ParallelPlan> found;
  for (const auto& [name, module] : model.NamedModules()) {
    std::optional<ParallelPlan> plan;
    if (const auto* gpt2 = dynamic_cast<const Gpt2*>(module)) plan = Gpt2Plan(gpt2->config());
    if (const auto* llama = dynamic_cast<const Llama*>(module)) plan = LlamaPlan(llama->config());
    if (const auto* mlp = dynamic_cast<const Mlp*>(module)) plan = MlpPlan(mlp->config());
    if (!plan) continue;
    if (found) return std::nullopt;
    // A derived class may do anything with the logits, so they must be whole.
    const Module& shipped = *module;
    if (typeid(shipped) != typeid(Gpt2) && typeid(shipped) != typeid(Llama)) {
      plan->output_module.clear();
      // It may also mix tokens outside of attention.
      std::erase_if(plan->rules, [](const PlanRule& rule) { return rule.style == kAttention; });
    }
    found = Below(name, *std::move(plan));
  }
  return found;
}

}  // namespace apogee::nn::parallel
