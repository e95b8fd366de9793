// SPDX-License-Identifier: Apache-2.0

// Generate: continues texts with a language model, greedily or by sampling.
//
//   const std::vector<std::vector<int64_t>> texts = nn::Generate(
//       model, {prompt, other_prompt},
//       {.max_new_tokens = 200, .temperature = 0.8, .top_p = 0.95,
//        .stop_tokens = nn::StopTokensOf(hf.token_ids), .max_tokens = hf.max_tokens});
//
// The model takes tokens i64 [B, T] and gives logits [B, T, vocabulary]. A row's last logits give
// its next token, as in the transformers library: temperature, then top-k, then top-p. The model
// runs in evaluation mode without a graph; afterwards every module is in the mode in which it was.
//
// With use_cache the model reads each token once, and a key/value cache keeps the rest. That needs
// a model that may be called with packed documents (Module::takes_documents). Without, it reads the
// whole text for every new token; any causal model can do that. Both give the same logits up to
// rounding.
//
// Every rank that runs the model together (tensor parallelism, sharded parameters) calls with the
// same arguments and gets the same tokens. Booster::generate also runs pipelines.
#ifndef APOGEE_NN_GENERATION_GENERATE_H_
#define APOGEE_NN_GENERATION_GENERATE_H_

#include <cstdint>
#include <vector>

#include "apogee/nn/configured.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  // Logits are divided by it; below 1 likely tokens become more likely. 0: the most likely token.
  double temperature = 0;
  // Only the k most likely tokens, and those that are as likely as the last of them. 0: all.
  int64_t top_k = 0;
  // Of what top_k leaves, the smallest set of most likely tokens whose probabilities add up to
  // top_p. 1: all.
  double top_p = 1;
  // A row ends with the first of these that it draws.
  std::vector<int64_t> stop_tokens = {};
  // The draws of a row depend on the seed, its index in the batch and the step.
  uint64_t seed = 1;
  // Positions of the model: the most tokens that it reads at once. 0: no limit. If a text needs
  // more, Generate throws Error; with slide_window it goes on with the last max_tokens tokens of
  // each row, without the cache.
  int64_t max_tokens = 0;
  bool slide_window = false;
  bool use_cache = true;
  // Without the cache the number of tokens that the model reads is rounded up to a multiple of
  // this, with padding behind the text. Sequence parallelism needs a multiple of its ranks.
  int64_t window_multiple = 1;
};

// The new tokens of each row, a stop token included: at most max_new_tokens. All rows end when each
// has stopped. Throws Error that lists every invalid option, for no prompts or an empty one, for
// one that is longer than max_tokens, for a model that cannot use a cache (KvCacheProblem), and for
// logits of another shape or that are not finite. `forward` computes the logits of all tokens;
// null: model(tokens).
std::vector<std::vector<int64_t>> Generate(Module& model,
                                           const std::vector<std::vector<int64_t>>& prompts,
                                           const GenerateOptions& options,
                                           const Module::ForwardFunction& forward = nullptr);

// The ids of "eos_token_id"; none if it is missing or null.
std::vector<int64_t> StopTokensOf(const TokenIds& ids);

}  // namespace apogee::nn

#endif  // APOGEE_NN_GENERATION_GENERATE_H_
