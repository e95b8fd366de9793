// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam as a scalar reference in double: all ranks' gradients go in, one parameter comes out.
//
//   ScalarOneBitAdam oracle(/*ranks=*/3, /*index=*/0, {.freeze_step = 4});
//   oracle.Step(1);
//   Compare(oracle.weights());
#ifndef APOGEE_TESTS_OPTIM_ONEBIT_SCALAR_ONEBIT_ADAM_H_
#define APOGEE_TESTS_OPTIM_ONEBIT_SCALAR_ONEBIT_ADAM_H_

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "apogee/optim/onebit/onebit_adam.h"
#include "apogee/tests/support/runs/onebit_run.h"

namespace apogee::optim {
namespace onebit_adam_test {

// Written from the equations, for one parameter.
class ScalarOneBitAdam {
 public:
  using Values = ::apogee::testing::Values;

  ScalarOneBitAdam(int ranks, size_t index, const OneBitAdamOptions& options)
      : ranks_(ranks), index_(index), o_(options), w_(testing::StartOf(index)) {
    m_.assign(w_.size(), 0);
    v_.assign(w_.size(), 0);
  }
  void Step(int t) {
    std::vector<Values> local;
    for (int r = 0; r < ranks_; ++r) local.push_back(testing::LocalGrad(r, t, index_));
    if (t <= o_.freeze_step || o_.non_freeze) {
      for (size_t i = 0; i < w_.size(); ++i) {
        double g = 0;
        for (const Values& grad : local) g += grad[i] / ranks_;
        m_[i] = o_.betas[0] * m_[i] + (1 - o_.betas[0]) * g;
        v_[i] = o_.betas[1] * v_[i] + (1 - o_.betas[1]) * g * g;
      }
    } else {
      for (Values& grad : local) {
        for (size_t i = 0; i < w_.size(); ++i) {
          grad[i] = o_.betas[0] * m_[i] + (1 - o_.betas[0]) * grad[i];
        }
      }
      if (ranks_ == 1) {
        m_ = local[0];
      } else {
        if (compression_ == nullptr) {
          std::vector<bool> live;
          for (const double v : v_) live.push_back(v != 0);
          compression_ = std::make_unique<testing::ScalarCompression>(static_cast<size_t>(ranks_),
                                                                      w_.size(), std::move(live));
        }
        m_ = compression_->Run(local);
      }
    }
    for (size_t i = 0; i < w_.size(); ++i) {
      w_[i] -= o_.lr * (m_[i] / (std::sqrt(v_[i]) + o_.eps) + o_.weight_decay * w_[i]);
    }
  }
  const Values& weights() const { return w_; }

 private:
  int ranks_;
  size_t index_;
  OneBitAdamOptions o_;
  Values w_, m_, v_;
  std::unique_ptr<testing::ScalarCompression> compression_;
};

}  // namespace onebit_adam_test
}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_ONEBIT_SCALAR_ONEBIT_ADAM_H_
