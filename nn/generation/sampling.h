// SPDX-License-Identifier: Apache-2.0

// Draws a token from logits, as the transformers library does: temperature, then top-k, then top-p
// (Holtzman et al., "The curious case of neural text degeneration", 2020).
//
//   const nn::SamplingOptions options{.temperature = 0.8, .top_k = 50, .top_p = 0.95};
//   const double u = nn::DrawOf(/*seed=*/1, /*row=*/0, /*step=*/7);
//   const int64_t token = nn::SampleToken(logits, options, u);
//
// All in f64 on the host. The draw is a number of the counter-based generator (core/rng.h), so a
// row's tokens do not depend on the batch, the ranks or the order of work.
#ifndef APOGEE_NN_GENERATION_SAMPLING_H_
#define APOGEE_NN_GENERATION_SAMPLING_H_

#include <cstdint>
#include <span>

namespace apogee::nn {

struct SamplingOptions {
  // Logits are divided by it; below 1 likely tokens become more likely. 0: the most likely token
  // (of equal ones the first), and no draw.
  double temperature = 0;
  // Only the k most likely tokens, and those that are as likely as the last of them. 0: all.
  int64_t top_k = 0;
  // Of what top_k leaves, only the smallest set of most likely tokens whose probabilities add up to
  // top_p; of equal tokens the first ones. 1: all.
  double top_p = 1;
};

// Throws Error that lists every invalid setting. top_k and top_p need a temperature.
void CheckSampling(const SamplingOptions& options);

// Uniform in (0, 1], a pure function of its arguments.
double DrawOf(uint64_t seed, int64_t row, int64_t step);

// The token at which the probabilities, added in the order of ids, reach u in (0, 1]. Throws Error
// if the largest logit is not finite, or one is NaN.
int64_t SampleToken(std::span<const double> logits, const SamplingOptions& options, double u);

}  // namespace apogee::nn

#endif  // APOGEE_NN_GENERATION_SAMPLING_H_
