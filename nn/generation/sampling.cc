// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "apogee/core/error.h"
#include "apogee/core/rng.h"

namespace apogee::nn {
namespace {

// The index of the first largest logit.
size_t Likeliest(std::span<const double> logits) {
  APOGEE_CHECK(!logits.empty(), "sampling: there are no logits");
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    APOGEE_CHECK(!std::isnan(logits[i]), "sampling: the logit of token ", i,
                 " is NaN; the model's weights or activations are not finite");
    if (logits[i] > logits[best]) best = i;
  }
  APOGEE_CHECK(std::isfinite(logits[best]), "sampling: the largest logit, of token ", best, ", is ",
               logits[best], "; the model's weights or activations are not finite");
  return best;
}

// The k-th largest of `scores`.
double KthLargest(std::vector<double> scores, int64_t k) {
  const auto kth = scores.begin() + (k - 1);
  std::ranges::nth_element(scores, kth, std::greater<>());
  return *kth;
}

// Sets the weights of the tokens outside of the top-p set to 0.
void KeepTopP(double top_p, std::vector<double>& weights) {
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<size_t> order;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) order.push_back(i);
  }
  const auto likelier = [&weights](size_t a, size_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  // The set is small as a rule: only as many tokens are sorted as it turns out to need.
  double sum = 0;
  size_t kept = 0;
  for (size_t sorted = 0; kept < order.size() && sum < wanted;) {
    const auto from = order.begin() + static_cast<std::ptrdiff_t>(sorted);
    sorted = std::min(order.size(), std::max<size_t>(64, 8 * sorted));
    std::partial_sort(from, order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                      likelier);
    while (kept < sorted && sum < wanted) sum += weights[order[kept++]];
  }
  for (size_t i = std::max<size_t>(1, kept); i < order.size(); ++i) weights[order[i]] = 0;
}

}  // namespace

void CheckSampling(const SamplingOptions& o) {
  std::string problems;
  const auto require = [&problems](bool ok, const std::string& problem) {
    if (!ok) problems += "\n  " + problem;
  };
  using internal::Concat;
  require(
      std::isfinite(o.temperature) && o.temperature >= 0,
      Concat("temperature must be above 0, or 0 for the most likely token, got ", o.temperature));
  require(o.top_k >= 0, Concat("top_k must be positive, or 0 for all tokens, got ", o.top_k));
  require(o.top_p > 0 && o.top_p <= 1, Concat("top_p must be in (0, 1], got ", o.top_p));
  require(o.temperature != 0 || (o.top_k == 0 && o.top_p == 1),
          "top_k and top_p have no effect at temperature 0, which takes the most likely token; set "
          "a temperature, such as 1");
  APOGEE_CHECK(problems.empty(), "sampling: invalid options:", problems);
}

double DrawOf(uint64_t seed, int64_t row, int64_t step) {
  const PhiloxKey key = MakeKey(seed, "generate");
  return ToUniform(Philox(key, static_cast<uint64_t>(step), static_cast<uint64_t>(row))[0]);
}

int64_t SampleToken(std::span<const double> logits, const SamplingOptions& options, double u) {
  const size_t best = Likeliest(logits);
  if (options.temperature == 0) return static_cast<int64_t>(best);
  std::vector<double> weights(logits.begin(), logits.end());  // scores at first
  for (double& weight : weights) weight = (weight - logits[best]) / options.temperature;
  const bool cuts = options.top_k > 0 && options.top_k < std::ssize(weights);
  const double least = cuts ? KthLargest(weights, options.top_k) : -HUGE_VAL;
  double total = 0;
  for (double& weight : weights) total += weight = weight >= least ? std::exp(weight) : 0;
  if (options.top_p < 1) {
    KeepTopP(options.top_p, weights);
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double sum = 0;
  int64_t last = static_cast<int64_t>(best);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = static_cast<int64_t>(i);
    sum += weights[i];
    if (sum >= u * total) return last;
  }
  return last;  // rounding left the sum just below the total
}

}  // namespace apogee::nn
