// SPDX-License-Identifier: Apache-2.0

// ParallelPlan: what a model's layers become when the ranks of a group share each of them (tensor
// parallelism; Shoeybi et al., "Megatron-LM", 2019). Models know nothing of it.
//
//   ParallelPlan plan{.name = "my model",
//                     .rules = {{.pattern = "*.fc1", .style = ParallelStyle::kColumn},
//                               {.pattern = "*.fc2", .style = ParallelStyle::kRow}}};
//   HybridParallelPlugin plugin(world, {.tp_size = 2, .plan = plan});
//
// A rule names modules by a shell pattern over their full names, in which * also matches dots.
// Modules that no rule names run whole on every rank, and their parameters are held by every rank.
// Between a column and a row style activations are cut: only what treats features (or heads) alike
// and apart may stand there. Of a parameter there that no rule cuts (a norm of heads) each rank has
// a part of the gradient only: use its value through CopyToGroup (functions.h). The first step of a
// boosted run throws Error where that is missing, and its first forward for a dropout there that no
// rule names.
#ifndef APOGEE_NN_PARALLEL_PLAN_H_
#define APOGEE_NN_PARALLEL_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"

namespace apogee::nn::parallel {

enum class ParallelStyle {
  // nn::Linear, cut by output features. Whole input, cut output.
  kColumn,
  // The same; its output is gathered (one all-gather).
  kColumnGather,
  // nn::Linear, cut by input features. Cut input, whole output (one all-reduce); the bias is whole
  // and added once.
  kRow,
  // The same; its input is whole, each rank takes its part.
  kRowSplit,
  // nn::Embedding, or the nn::Linear that makes logits, cut by words. tp need not divide their
  // number: the last ranks' tables are padded (weights [vocabulary, d] only).
  kVocabulary,
  // nn::Dropout on an activation that is cut in one section: the mask is the whole activation's.
  kDropout,
  // nn::AttentionCore: where tokens of one sequence meet. Heads are `units` of it (grouped queries:
  // the key-value heads). Tensor parallelism leaves it as it is.
  kAttention,
  // Parameters, not modules, of a module of your own that does its own communication: cut along
  // `dim`, and nothing else.
  kParameter,
};

// "column", …: for messages.
const char* ParallelStyleName(ParallelStyle style);

struct PlanRule {
  std::string pattern;
  ParallelStyle style = ParallelStyle::kColumn;
  // kColumn, kRow and kParameter: the cut dim is so many equal tensors side by side (3: fused q, k,
  // v), each of which is cut. A row style's cut input has the same sections.
  int sections = 1;
  // Above 0: a section is so many units (heads) that no cut may go through, and what they are
  // called.
  int64_t units = 0;
  std::string unit_name = {};
  // kParameter: the dim to cut, and whether dim 0 may be padded.
  int dim = 0;
  bool pad = false;
};

struct ParallelPlan {
  std::string name;
  std::vector<PlanRule> rules;
  // The module, if any, whose output is the model's, as it is: logits may stay cut between it and
  // a cross entropy over the group, and throw when anything else reads them.
  std::string output_module = {};
  // The module whose sequences are cut when ranks hold parts of them (sequence parallelism); empty:
  // the model itself. It takes and puts out [samples, tokens, ..], and what it computes of a token
  // depends on other tokens in kAttention modules only, and on the token's place as
  // Module::sequence_part says.
  std::string sequence_module = {};
};

// The plans that come with Apogee.
ParallelPlan Gpt2Plan(const Gpt2Config& config);
ParallelPlan LlamaPlan(const LlamaConfig& config);
// Layers by turns column and row; a last one that is left over stays whole, but for a single one,
// which is gathered.
ParallelPlan MlpPlan(const MlpConfig& config);
// The plan of a model that is, or contains one, nn::Gpt2, nn::Llama or nn::Mlp. Nothing for others
// and for models that contain several. Only of nn::Gpt2 and nn::Llama themselves logits may stay
// cut.
std::optional<ParallelPlan> ShippedPlan(Module& model);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_PLAN_H_
