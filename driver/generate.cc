// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/generate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/core/rng.h"

namespace apogee::driver {
namespace {

// The index at which the cumulative sum of softmax(logits / temperature) reaches u in (0, 1].
int64_t Draw(const std::vector<double>& logits, double temperature, double u) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  double total = 0;
  for (const double logit : logits) {
    total += weights.emplace_back(std::exp((logit - highest) / temperature));
  }
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= u * total) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(weights.size()) - 1;
}

}  // namespace

std::string Generate(nn::Module& model, const data::Tokenizer& tokenizer, const ContextPtr& context,
                     const std::string& prompt, const GenerateOptions& options) {
  const autograd::NoGradGuard no_grad;
  model.Train(false);
  const PhiloxKey key = MakeKey(options.seed, "generate");
  std::vector<int32_t> tokens;
  tokenizer.Encode(prompt, tokens);
  APOGEE_CHECK(!tokens.empty(), "generate: the prompt has no tokens; give at least a word");
  for (int64_t i = 0; i < options.tokens; ++i) {
    // The window always has `block` tokens, so the model sees only one shape. Tokens after the last
    // one are padding: attention is causal and ignores them.
    const int64_t length = std::min(static_cast<int64_t>(tokens.size()), options.block);
    std::vector<int64_t> window(tokens.end() - length, tokens.end());
    window.resize(static_cast<size_t>(options.block), 0);
    const Tensor logits = model(Tensor::FromVector<int64_t>(window, {1, options.block}, context));
    const auto last = logits.Detach().Slice(1, length - 1, 1).ToVector<double>();
    const float u = ToUniform(Philox(key, static_cast<uint64_t>(i))[0]);
    tokens.push_back(static_cast<int32_t>(Draw(last, options.temperature, u)));
  }
  return tokenizer.Decode(tokens);
}

}  // namespace apogee::driver
