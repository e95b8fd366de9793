// SPDX-License-Identifier: Apache-2.0

// PartialGradients: sums, once per step, gradients of which every rank of a group has an addend:
// those of parameters that each rank applies to its own tokens (SequenceMode::kSplitGather).
//
//   PartialGradients partial("hybrid_parallel", views, tp);
//   partial.AddTo(optimizer);            // sums before its decision, addends again after the step
//
// One all-reduce of all of them, in f32 (f64 where one of them is f64), with presence: what is
// absent on every rank stays absent, what some rank has is present on all. Gradients that a loop
// keeps after a step, to add to them, are addends again. step() is collective over the group.
#ifndef APOGEE_PLUGINS_PARTIAL_GRADIENTS_H_
#define APOGEE_PLUGINS_PARTIAL_GRADIENTS_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class PartialGradients {
 public:
  // `views` must outlive this. `group` is not null.
  PartialGradients(std::string plugin, std::vector<optim::ParamView*> views, comm::GroupPtr group);
  // This object must outlive every step of the optimizer.
  void AddTo(optim::Optimizer& optimizer);
  // Throws Error, the first time that there are gradients, when one is the same on every rank: it
  // has been summed already, or is that of whole sequences.
  void Sum();
  // Where the sums still are what Sum made.
  void Restore();

 private:
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
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PARTIAL_GRADIENTS_H_
