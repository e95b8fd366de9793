// SPDX-License-Identifier: Apache-2.0

// Four parameters of odd shapes and gradients that are a pure function of (rank, step, parameter),
// for the optimizers with 1-bit messages.
//
//   const auto params = MakeOneBitParams(world.context());
//   optimizer.SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
//   FeedOneBit(optimizer, world, t);     // local gradients or means, whichever the optimizer needs
#ifndef APOGEE_TESTS_SUPPORT_RUNS_ONEBIT_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_ONEBIT_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/core/rng.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/optimizer.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/scalar_compression.h"

namespace apogee::testing {

inline std::vector<Shape> OneBitShapes() { return {{7, 5}, {13}, {3, 4, 5}, {1}}; }

// Uniform in [-0.5, 0.5), times a scale of the parameter.
inline double OneBitRandom(const std::string& what, size_t parameter, uint64_t element) {
  const auto bits = Philox(MakeKey(parameter, what), element);
  return (static_cast<double>(bits[0]) / 4294967296.0 - 0.5) * (parameter == 1 ? 10 : 1);
}

inline Values StartOf(size_t parameter) {
  Values start;
  const auto n = static_cast<uint64_t>(OneBitShapes()[parameter].numel());
  for (uint64_t i = 0; i < n; ++i) start.push_back(OneBitRandom("start", parameter, i));
  return start;
}

// A part common to all ranks, plus noise. Element 1 of parameter 0 is always 0.
inline Values LocalGrad(int rank, int step, size_t parameter) {
  Values grad;
  const auto n = static_cast<uint64_t>(OneBitShapes()[parameter].numel());
  for (uint64_t i = 0; i < n; ++i) {
    grad.push_back(parameter == 0 && i == 1
                       ? 0
                       : OneBitRandom("common", parameter, i) +
                             OneBitRandom(internal::Concat(step), parameter, i) +
                             OneBitRandom(internal::Concat(step, "/", rank), parameter, i));
  }
  return grad;
}

inline std::vector<autograd::ParameterPtr> MakeOneBitParams(const ContextPtr& context,
                                                            DType dtype = DType::kF64) {
  std::vector<autograd::ParameterPtr> params;
  for (size_t k = 0; k < OneBitShapes().size(); ++k) {
    params.push_back(std::make_shared<autograd::Parameter>(
        internal::Concat("p", k),
        Tensor::FromVector<double>(StartOf(k), OneBitShapes()[k], context, dtype)));
    params.back()->set_grad_dtype(dtype);
  }
  return params;
}

// Sets the gradients that a plugin would set for step `t`. The parameters are those of
// MakeOneBitParams.
template <typename Optimizer>
void FeedOneBit(Optimizer& optimizer, const comm::World& world, int t) {
  size_t k = 0;
  optimizer.zero_grad();
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    const bool local = optimizer.rule().TakesLocalGrad(group);
    Values grad = LocalGrad(world.rank(), t, k);
    if (!local) {
      grad.assign(grad.size(), 0);
      for (int r = 0; r < world.size(); ++r) {
        const Values other = LocalGrad(r, t, k);
        for (size_t i = 0; i < grad.size(); ++i) grad[i] += other[i] / world.size();
      }
    }
    view.parameter()->set_grad(Tensor::FromVector<double>(grad, view.value().shape(),
                                                          world.context(), view.value().dtype()));
    ++k;
  });
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_ONEBIT_RUN_H_
