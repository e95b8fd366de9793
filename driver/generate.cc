// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/generate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/core/rng.h"
#include "apogee/data/text_corpus.h"

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

std::string Generate(nn::Module& model, const ContextPtr& context, const std::string& prompt,
                     const GenerateOptions& options) {
  const autograd::NoGradGuard no_grad;
  model.Train(false);
  const PhiloxKey key = MakeKey(options.seed, "generate");
  std::vector<int64_t> tokens = data::TextCorpus::Encode(prompt);
  for (int64_t i = 0; i < options.bytes; ++i) {
    // The window always has `block` tokens, so the model sees only one shape. Tokens after the last
    // byte are padding: attention is causal and ignores them.
    const int64_t length = std::min(static_cast<int64_t>(tokens.size()), options.block);
    std::vector<int64_t> window(tokens.end() - length, tokens.end());
    window.resize(static_cast<size_t>(options.block), 0);
    const Tensor logits = model(Tensor::FromVector<int64_t>(window, {1, options.block}, context));
    const auto last = logits.Detach().Slice(1, length - 1, 1).ToVector<double>();
    const float u = ToUniform(Philox(key, static_cast<uint64_t>(i))[0]);
    tokens.push_back(Draw(last, options.temperature, u));
  }
  return data::TextCorpus::Decode(tokens);
}

}  // namespace apogee::driver
