// SPDX-License-Identifier: Apache-2.0

// PartialGradients: sums gradients of which every rank of a group has an addend, once per step.
// These are the gradients of parameters that each rank applies to its own tokens
// (SequenceMode::kSplitGather).
//
//   PartialGradients partial("hybrid_parallel", views, tp);
//   partial.ListenTo(optimizer);   // sums before the optimizer's decision, then restores addends
//
// One all-reduce sums all of them, in f32 (f64 if any of them is f64), and carries their presence:
// a gradient that is absent on every rank stays absent; one that some rank has is present on all.
// After the step, gradients that the loop keeps to add to are addends again. step() is collective
// over the group.
#ifndef APOGEE_PLUGINS_HYBRID_PARTIAL_GRADIENTS_H_
#define APOGEE_PLUGINS_HYBRID_PARTIAL_GRADIENTS_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class PartialGradients : private StepListener {
 public:
  // `views` must outlive this. `group` is not null.
  PartialGradients(std::string plugin, std::vector<optim::ParamView*> views, comm::GroupPtr group);
  // From now on the optimizer's steps call Sum and Restore.
  void ListenTo(optim::Optimizer& optimizer) { own_ = optimizer.AddListener(*this); }
  // Replaces gradients by their sums. The first time that there are gradients, throws Error if one
  // is the same on every rank: then it is already a sum, or the gradient of whole sequences.
  void Sum();
  // Puts the addends back, except where the gradient has changed since Sum.
  void Restore();

 private:
  void BeforeStep() override { Sum(); }
  void AfterStep() override { Restore(); }

  struct Summed {
    optim::ParamView* view;
    Tensor addend;  // undefined: absent
    Tensor sum;
  };
  void CheckDiffer();

  std::string plugin_;
  std::vector<optim::ParamView*> views_;
  comm::GroupPtr group_;
  std::vector<Summed> summed_;
  bool checked_ = false;
  Subscription own_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_PARTIAL_GRADIENTS_H_
