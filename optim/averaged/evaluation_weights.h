// SPDX-License-Identifier: Apache-2.0

// EvaluationWeights: while it lives, the model has the weights to evaluate. For an optimizer that
// averages weights (OptimizerTraits::averages_weights) these are the averages; for all others they
// are the weights themselves, and it does nothing. Then the weights get their old bits back.
//
//   {
//     const optim::EvaluationWeights averages(optimizer);
//     Validate(model);
//   }
//   optimizer.step();
//
// There is no mode to switch back. backward under a plugin and step() throw Error while it lives,
// with everything unchanged. In programs that use a Booster, Booster::evaluation_weights makes it.
//
// Under a plugin, making and destroying it are collective, between step() and the next backward. It
// keeps a copy of this rank's part of the weights, and must be destroyed before the optimizer. If
// ranks fail while it ends, the optimizer refuses further steps with the cause.
#ifndef APOGEE_OPTIM_AVERAGED_EVALUATION_WEIGHTS_H_
#define APOGEE_OPTIM_AVERAGED_EVALUATION_WEIGHTS_H_

#include <vector>

#include "apogee/core/step_listener.h"
#include "apogee/optim/optimizer.h"

namespace apogee::optim {

class EvaluationWeights : private StepListener {
 public:
  // Throws Error if another one of this optimizer is alive.
  explicit EvaluationWeights(Optimizer& optimizer);
  ~EvaluationWeights() override;
  EvaluationWeights(const EvaluationWeights&) = delete;
  EvaluationWeights& operator=(const EvaluationWeights&) = delete;

 private:
  void BeforeBackward() override { Refuse("backward"); }
  void BeforeStep() override { Refuse("step"); }
  void BeforeWeightsReplaced() override { Refuse("another EvaluationWeights"); }
  [[noreturn]] void Refuse(const char* call) const;
  // This rank's part, and then everywhere.
  void Restore();
  void PutBack();

  struct Kept {
    ParamView* view;
    Tensor value, master;  // master: undefined if there was none
  };
  Optimizer& optimizer_;
  std::vector<Kept> kept_;
  Subscription own_;  // once the averages are in place
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_AVERAGED_EVALUATION_WEIGHTS_H_
