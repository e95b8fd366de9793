// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/hf/hf_tolerances.h"

#include <algorithm>
#include <cmath>

namespace apogee::verify {
namespace {

constexpr double kF32Relative = 1e-6;
constexpr double kF64Value = 1e-11;    // logits and losses
constexpr double kF64Largest = 1e-10;  // of the largest value of a tensor
constexpr double kF32Rounding = 6e-8;  // of values that are recorded in float32
// Of the largest gradient of the model. Gradients that are 0 in exact arithmetic, as those of key
// biases, are rounding noise of such sums, whatever the largest value of their own tensor is.
constexpr double kF64Noise = 1e-13;

double LargestOf(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

}  // namespace

HfTolerances::HfTolerances(const GoldenCase& golden, DType dtype)
    : is_f64_(dtype == DType::kF64), tolerance_(golden.required("tolerance")) {
  if (!is_f64_) return;
  for (const auto& [entry, place] : golden.file().entries()) {
    if (!entry.starts_with("grad/")) continue;
    gradient_noise_ = std::max(gradient_noise_, kF64Noise * LargestOf(golden.Values(entry)));
  }
}

Tolerances HfTolerances::OfValue(const char* key) const {
  if (is_f64_) return {.atol = kF64Value, .rtol = 0};
  return {.atol = tolerance_.at(key).get<double>(), .rtol = kF32Relative};
}

double HfTolerances::OfParameter(const std::string& name, const char* key) const {
  return tolerance_.at("per_param").at(name).at(key).get<double>();
}

Tolerances HfTolerances::Gradient(const std::string& name,
                                  const std::vector<double>& recorded) const {
  if (!is_f64_) return {.atol = OfParameter(name, "grad_atol"), .rtol = kF32Relative};
  return {.atol = ExactGradient(recorded).atol, .rtol = kF32Rounding};
}

Tolerances HfTolerances::Final(const std::string& name, const std::vector<double>& recorded) const {
  if (!is_f64_) return {.atol = OfParameter(name, "final_atol"), .rtol = kF32Relative};
  return {.atol = kF64Largest * LargestOf(recorded), .rtol = kF32Rounding};
}

Tolerances HfTolerances::ExactGradient(const std::vector<double>& recorded) const {
  return {.atol = kF64Largest * LargestOf(recorded) + gradient_noise_, .rtol = 0};
}

}  // namespace apogee::verify
