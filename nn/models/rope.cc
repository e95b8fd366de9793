// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/rope.h"

#include <cmath>
#include <numbers>

namespace apogee::nn {

std::vector<double> RotaryFrequencies(double theta, int64_t dims) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dims / 2; ++i) {
    frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
  return frequencies;
}

std::vector<double> Llama3Frequencies(std::vector<double> frequencies,
                                      const Llama3Scaling& scaling) {
  const double tokens = scaling.original_max_tokens;
  for (double& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double slow = frequency / scaling.factor;
    if (wavelength > tokens / scaling.low_freq_factor) {
      frequency = slow;
    } else if (wavelength >= tokens / scaling.high_freq_factor) {
      const double s = (tokens / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
      frequency = (1 - s) * slow + s * frequency;
    }
  }
  return frequencies;
}

}  // namespace apogee::nn
