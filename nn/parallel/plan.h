// SPDX-License-Identifier: Apache-2.0

// ParallelPlan: how tensor parallelism shards a model's layers over the ranks of a group (Shoeybi
// et al., "Megatron-LM", 2019). The model's code does not change.
//
//   ParallelPlan plan{.name = "my model",
//                     .rules = {{.pattern = "*.fc1", .style = ParallelStyle::kColumn},
//                               {.pattern = "*.fc2", .style = ParallelStyle::kRow}}};
//   HybridParallelPlugin plugin(world, {.tp_size = 2, .plan = plan});
//
// A rule selects modules by a shell pattern over their full names; * also matches dots. Modules
// that no rule selects run whole on every rank, with replicated parameters.
//
// Between a column and a row layer a rank has only some columns of each activation. Code there must
// treat every feature (or head) the same way and separately from the others. If it uses a parameter
// that no rule cuts, each rank has only a part of that parameter's gradient: read its value through
// CopyToGroup (functions.h), or select the module by kHeadNorm. The first step of a boosted run
// throws Error if that call is missing. The first forward throws Error if there is a dropout in
// between that no rule selects.
#ifndef APOGEE_NN_PARALLEL_PLAN_H_
#define APOGEE_NN_PARALLEL_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/nn/models/bert.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/nn/models/vit.h"

namespace apogee::nn::parallel {

enum class ParallelStyle {
  // nn::Linear, sharded by output features, or nn::Conv1d or nn::Conv2d without groups, sharded by
  // output channels. Whole input, sharded output.
  // nn::Gru and nn::Lstm, sharded by units (one all-gather of the state in each step); `sections`
  // stays 1. Whole input, sharded output.
  kColumn,
  // The same, then gathers the output (one all-gather).
  kColumnGather,
  // The same layers, sharded by input features or channels. Sharded input, whole output (one
  // all-reduce). The bias is whole and added once.
  kRow,
  // The same with a whole input, of which each rank takes its part.
  kRowSplit,
  // nn::Embedding, or the nn::Linear that computes logits, sharded by vocabulary entries. tp need
  // not divide their number: the last ranks' tables are padded (weights [vocabulary, d] only).
  kVocabulary,
  // nn::Dropout on a sharded activation of one section. The ranks draw their parts of the mask that
  // one rank would draw for the whole activation.
  kDropout,
  // nn::RmsNorm or nn::LayerNorm over each head of a sharded activation [.., heads, head size]. Its
  // parameters stay whole; the ranks' gradients of them are summed (norm.h).
  kHeadNorm,
  // nn::RmsNorm over all features of a sharded activation. The weight is sharded, and the ranks add
  // up their squares (one all-reduce of a number per row forward, and one backward).
  kColumnNorm,
  // nn::AttentionCore: the only place where tokens of one sequence meet. `units` are its heads
  // (grouped queries: the key-value heads). For sequence parallelism; tensor parallelism leaves it
  // as it is.
  kAttention,
  // The experts of an nn::Moe: each is sharded by its inner features, as a column and a row layer
  // (one all-reduce of the rows of all experts). Whole input and output.
  kExperts,
  // The pattern selects parameters, not modules: those of a module of your own that does its own
  // communication. They are sharded along `dim`; nothing else changes.
  kParameter,
};

// "column", "column_gather", …: for messages.
const char* ParallelStyleName(ParallelStyle style);

// How sequences are cut over ranks; nn/parallel/sequence_parallel.h explains the modes.
enum class SequenceMode { kNone, kSplitGather, kAllToAll, kRingAttention };

// "none", "split_gather", "all_to_all", "ring_attn".
const char* Name(SequenceMode mode);
// Reads these texts, and "" as kNone.
absl::StatusOr<SequenceMode> ParseSequenceMode(const std::string& text);

struct PlanRule {
  std::string pattern;
  ParallelStyle style = ParallelStyle::kColumn;
  // kColumn, kRow, kColumnNorm and kParameter: the sharded dim consists of this many equal sections
  // side by side, each of which is sharded (3: fused q, k, v). The input of a row style has the
  // same sections.
  int sections = 1;
  // Above 0: a section consists of this many units (heads), which are never divided between ranks;
  // and their name, for messages.
  int64_t units = 0;
  std::string unit_name = {};
  // In place of `sections` and `units`: the dim consists of unequal sections, of these many units
  // each ({8, 2, 2}: fused q of 8 heads, k and v of 2). tp must divide each number.
  std::vector<int64_t> section_units = {};
  // kParameter: the dim to shard, and whether dim 0 may be padded.
  int dim = 0;
  bool pad = false;
};

struct ParallelPlan {
  std::string name;
  std::vector<PlanRule> rules;
  // The kVocabulary nn::Linear whose output the model returns unchanged, if there is one. Its
  // logits may stay sharded up to a vocabulary-parallel cross entropy; reading them in any other
  // way throws Error.
  std::string output_module = {};
  // The module inside which sequence parallelism shards the tokens; empty: the model itself. It
  // takes and returns [samples, tokens, ..]. It must mix tokens only in kAttention modules, and
  // must take token positions from Module::sequence_part.
  std::string sequence_module = {};
};

// The plans for Apogee's own models.
ParallelPlan DecoderPlan(const DecoderConfig& config);
ParallelPlan BertPlan(const BertConfig& config);
ParallelPlan VitPlan(const VitConfig& config);
// The rules of a transformer block's layers. `layer` is the pattern of the blocks' names. It ends
// in a dot ("model.layers.*."). `has_mlp`: some of the blocks have an MLP, not experts.
std::vector<PlanRule> BlockRules(const BlockConfig& block, const std::string& layer,
                                 bool has_mlp = true);
// Alternates column and row layers. If a last layer is left over it stays whole; a single layer is
// kColumnGather.
ParallelPlan MlpPlan(const MlpConfig& config);
// The plan of a model that is, or contains, one nn::Decoder (nn::Gpt2,
// nn::Llama), nn::Bert, nn::Vit or nn::Mlp. Nothing for other
// models and for models that contain several of these. For a model that contains one, and for a
// class derived from one, logits don't stay sharded; for a derived class there is no kAttention
// rule either.
std::optional<ParallelPlan> ShippedPlan(Module& model);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_PLAN_H_
