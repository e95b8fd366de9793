// SPDX-License-Identifier: Apache-2.0

// Helpers of the optimizer tests: parameters and gradients with random values of full rank.
#ifndef APOGEE_TESTS_OPTIM_OPTIM_FIXTURE_H_
#define APOGEE_TESTS_OPTIM_OPTIM_FIXTURE_H_

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/set_element.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::optim {

using autograd::Parameter;
using autograd::ParameterPtr;

inline std::vector<double> RandomValues(int64_t n, uint64_t seed, double scale = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;  // does not take a deviation of 0
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = scale * normal(engine);
  return values;
}

inline Tensor RandomTensor(const Shape& shape, DType dtype, const ContextPtr& context,
                           uint64_t seed, double scale = 1) {
  return Tensor::FromVector(RandomValues(shape.numel(), seed, scale), shape, context, dtype);
}

inline ParameterPtr RandomParam(const std::string& name, const Shape& shape, DType dtype,
                                const ContextPtr& context, uint64_t seed) {
  return std::make_shared<Parameter>(name, RandomTensor(shape, dtype, context, seed));
}

inline std::vector<double> Values(const Tensor& tensor) { return tensor.ToVector<double>(); }

inline double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// ||a - b|| / ||b - from||: the error of an update relative to the update.
inline double UpdateError(const std::vector<double>& a, const std::vector<double>& b,
                          const std::vector<double>& from) {
  std::vector<double> error(a.size()), update(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    error[i] = a[i] - b[i];
    update[i] = b[i] - from[i];
  }
  return Norm(error) / Norm(update);
}

// Shapes with every awkward property: scalar, one row, one column, odd, three dims, split over
// threads.
inline std::vector<Shape> AwkwardShapes() {
  return {{}, {1}, {37}, {1, 9}, {9, 1}, {33, 17}, {4, 6, 5}, {270, 251}};
}

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_OPTIM_FIXTURE_H_
