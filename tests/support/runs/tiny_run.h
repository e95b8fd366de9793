// SPDX-License-Identifier: Apache-2.0

// A small training run for parity tests: matrix/models/tiny_model.h with AdamW. The plain run is a
// loop without a booster.
//
//   Weights want = PlainRun({.dtype = DType::kF64});
#ifndef APOGEE_TESTS_SUPPORT_RUNS_TINY_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_TINY_RUN_H_

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/matrix/models/tiny_model.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::testing {

using matrix::kTinyBatch;
using matrix::kTinyTokens;
using matrix::kTinyVocab;
using matrix::TinyKind;

struct TinyRunOptions {
  TinyKind kind = TinyKind::kGpt2;
  DType dtype = DType::kF64;
  int64_t steps = 20;
  double max_norm = 0;
  double dropout = 0;
  // The order of the samples within the batch: 0 unchanged, others permuted (to measure rounding
  // noise).
  int permutation = 0;
};

class TinyModel : public matrix::TinyModel {
 public:
  explicit TinyModel(const TinyRunOptions& options)
      : matrix::TinyModel({.kind = options.kind, .dropout = options.dropout}) {}
};

inline Tensor TinyLoss(nn::Module& model, const ContextPtr& context, const TinyRunOptions& options,
                       int64_t step, int64_t first, int64_t rows) {
  return matrix::TinyLoss(
      model, context,
      {.step = step, .first = first, .count = rows, .permutation = options.permutation});
}

inline optim::AdamWOptions TinyAdamW() { return {.lr = 1e-2, .weight_decay = 0.1}; }

// The plain loop on one rank with the whole batch. `start` gets the initial weights, if not null.
inline Weights PlainRun(const TinyRunOptions& options, Weights* start = nullptr) {
  const ContextPtr context = TestContext();
  TinyModel model(options);
  model.Initialize(context, {.seed = 11, .dtype = options.dtype});
  optim::AdamW optimizer(model.Parameters(), TinyAdamW());
  optimizer.set_step_options({.max_norm = options.max_norm});
  if (start != nullptr) *start = WeightsOf(model);
  for (int64_t step = 0; step < options.steps; ++step) {
    autograd::Backward(TinyLoss(model, context, options, step, 0, kTinyBatch));
    optimizer.step();
    optimizer.zero_grad();
  }
  return WeightsOf(model);
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_TINY_RUN_H_
