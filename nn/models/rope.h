// SPDX-License-Identifier: Apache-2.0

// Frequencies of rotary positions, scaled for sequences that are longer than those of the first
// training.
//
//   // Llama 3.1: low frequencies are divided by the factor, high ones stay.
//   const std::vector<double> f = nn::Llama3Frequencies(
//       nn::RotaryFrequencies(500000, 128),
//       {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_tokens = 8192});
//
// A frequency is the angle, in radians, by which a pair of dims turns from one token to the next.
#ifndef APOGEE_NN_MODELS_ROPE_H_
#define APOGEE_NN_MODELS_ROPE_H_

#include <cstdint>
#include <vector>

namespace apogee::nn {

// theta^(-2i / dims) for each i < dims / 2.
std::vector<double> RotaryFrequencies(double theta, int64_t dims);

struct Llama3Scaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_tokens = 8192;
};
// With the wavelength w of a frequency f and n = original_max_tokens:
//   w > n / low_freq_factor       f / factor
//   w < n / high_freq_factor      f
//   between                       (1 - s) f / factor + s f, a mix of both
// where s = (n / w - low_freq_factor) / (high_freq_factor - low_freq_factor).
std::vector<double> Llama3Frequencies(std::vector<double> frequencies,
                                      const Llama3Scaling& scaling);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_ROPE_H_
