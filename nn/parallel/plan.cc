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
  static constexpr const char* kNames[] = {
      "column",    "column_gather", "row",       "row_split", "vocabulary", "dropout",
      "head_norm", "column_norm",   "attention", "experts",   "parameter"};
  return kNames[static_cast<size_t>(style)];
}

const char* Name(SequenceMode mode) { return NameOf<SequenceMode>(kModeNames, mode); }

absl::StatusOr<SequenceMode> ParseSequenceMode(const std::string& text) {
  return ParseName<SequenceMode>("sp_mode", kModeNames, text);
}

std::vector<PlanRule> BlockRules(const BlockConfig& block, const std::string& layer, bool has_mlp) {
  const BlockNames& names = block.names;
  const int64_t heads = block.num_heads, kv_heads = block.num_kv_heads;
  std::vector<PlanRule> rules;
  const auto add = [&](const std::string& name, ParallelStyle style, int64_t units,
                       const char* unit_name) -> PlanRule& {
    return rules.emplace_back(
        PlanRule{.pattern = layer + name, .style = style, .units = units, .unit_name = unit_name});
  };
  const char* const kv_name = heads == kv_heads ? kHeads : kKeyValueHeads;
  if (block.qkv_layout == QkvLayout::kSeparate) {
    add(names.q, kColumn, heads, kHeads);
    add(names.k, kColumn, kv_heads, kKeyValueHeads);
    add(names.v, kColumn, kv_heads, kKeyValueHeads);
  } else if (block.qkv_layout == QkvLayout::kByHead) {
    add(names.qkv, kColumn, heads, kHeads);
  } else if (heads == kv_heads) {
    add(names.qkv, kColumn, heads, kHeads).sections = 3;
  } else {
    PlanRule& rule = add(names.qkv, kColumn, 0, kKeyValueHeads);
    rule.section_units = {heads, kv_heads, kv_heads};
  }
  if (block.head_norm == HeadNorm::kPerHead) {
    add(names.q_norm, kHeadNorm, 0, "");
    add(names.k_norm, kHeadNorm, 0, "");
  } else if (block.head_norm == HeadNorm::kAllHeads) {
    add(names.q_norm, kColumnNorm, heads, kHeads);
    add(names.k_norm, kColumnNorm, kv_heads, kKeyValueHeads);
  }
  add(names.out, kRow, heads, kHeads);
  add(names.core, kAttention, kv_heads, kv_name);
  if (const MoeConfig& moe = block.moe; moe.num_experts > 0) {
    const std::string at = names.mlp + ".";
    add(at + moe.names.experts, kExperts, 0, "");
    if (moe.shared_size > 0) {
      add(at + moe.names.shared + "." + moe.names.expert_gate, kColumn, 0, "");
      add(at + moe.names.shared + "." + moe.names.expert_up, kColumn, 0, "");
      add(at + moe.names.shared + "." + moe.names.expert_down, kRow, 0, "");
    }
  }
  if (!has_mlp) return rules;
  if (!block.gated_mlp) {
    add(names.up, kColumn, 0, "");
  } else if (!names.gate_up.empty()) {
    add(names.gate_up, kColumn, 0, "").sections = 2;
  } else {
    add(names.gate, kColumn, 0, "");
    add(names.up, kColumn, 0, "");
  }
  add(names.down, kRow, 0, "");
  return rules;
}

ParallelPlan DecoderPlan(const DecoderConfig& config) {
  ParallelPlan plan{.name = config.model_type,
                    .rules = {{.pattern = config.names.tokens, .style = kVocabulary}},
                    .output_module = config.names.head};
  BlockConfig block = config.block;
  const bool all_dense = static_cast<int64_t>(config.dense_layers.size()) == config.num_layers;
  if (all_dense) block.moe = {};
  const bool has_mlp = block.moe.num_experts == 0 || !config.dense_layers.empty();
  for (PlanRule& rule : BlockRules(block, config.names.layers + ".*.", has_mlp)) {
    plan.rules.push_back(std::move(rule));
  }
  plan.rules.push_back({.pattern = config.names.head, .style = kVocabulary});
  return plan;
}

// A layer's path ends in a digit here. * also matches dots: "layer.*.output.dense" would select
// "layer.0.attention.output.dense", too.
ParallelPlan BertPlan(const BertConfig& config) {
  const std::string head = "cls.predictions.decoder";
  ParallelPlan plan{.name = "bert",
                    .rules = BlockRules(config.block, "bert.encoder.layer.*[0-9]."),
                    .output_module = head};
  plan.rules.push_back({.pattern = "bert.embeddings.word_embeddings", .style = kVocabulary});
  plan.rules.push_back({.pattern = head, .style = kVocabulary});
  return plan;
}

ParallelPlan VitPlan(const VitConfig& config) {
  return {.name = "vit", .rules = BlockRules(config.block, "vit.encoder.layer.*[0-9].")};
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
    if (const auto* decoder = dynamic_cast<const Decoder*>(module)) {
      plan = DecoderPlan(decoder->decoder_config());
    }
    if (const auto* bert = dynamic_cast<const Bert*>(module)) plan = BertPlan(bert->config());
    if (const auto* vit = dynamic_cast<const Vit*>(module)) plan = VitPlan(vit->config());
    if (const auto* mlp = dynamic_cast<const Mlp*>(module)) plan = MlpPlan(mlp->config());
    if (!plan) continue;
    if (found) return std::nullopt;
    // A derived class may do anything with the logits, so they must be whole.
    const Module& shipped = *module;
    if (typeid(shipped) != typeid(Decoder) && typeid(shipped) != typeid(Gpt2) &&
        typeid(shipped) != typeid(Llama) && typeid(shipped) != typeid(Bert)) {
      plan->output_module.clear();
      // It may also mix tokens outside of attention.
      std::erase_if(plan->rules, [](const PlanRule& rule) { return rule.style == kAttention; });
    }
    found = Below(name, *std::move(plan));
  }
  return found;
}

}  // namespace apogee::nn::parallel
