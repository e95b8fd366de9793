// SPDX-License-Identifier: Apache-2.0

// FirstStepWatch: checks, in the first step, for mistakes under a mesh that would otherwise go
// unnoticed:
//
//   - Ranks that share one replica of the model got the same inputs.
//   - They have the same gradients of each parameter that every one of them holds whole.
//   - A dropout that no rule of the plan names gets the same input on all tp ranks. This is checked
//     where the graph does not say that the input is whole (frozen layers, the first layer of a
//     pipeline stage).
//
//   FirstStepWatch watch("hybrid_parallel", mesh, tensor_parallel, context);
//   watch.Attach(model, optimizer);      // after the inner plugin listens
//
// Communicates in the first step, and in later ones until all gradients of a step are finite. Hooks
// see the inputs when the model is called; a caller that runs only parts of it must call Check.
#ifndef APOGEE_PLUGINS_FIRST_STEP_WATCH_H_
#define APOGEE_PLUGINS_FIRST_STEP_WATCH_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class FirstStepWatch : private StepListener {
 public:
  // `parallel` may be null. The mesh and `parallel` must outlive the watch, which must outlive the
  // optimizer's last step.
  FirstStepWatch(std::string plugin, const comm::Mesh& mesh,
                 const nn::parallel::TensorParallel* parallel, ContextPtr context);
  void Attach(nn::Module& model, optim::Optimizer& optimizer);
  // Treats `inputs`, and the starts of their documents if defined, as those of a call of the model,
  // and compares them over the ranks. Collective.
  void Check(const Tensor& inputs, const Tensor& starts);

 private:
  void BeforeStep() override;
  void Add(const Tensor& inputs);
  void CheckInputs(comm::Group& group) const;
  void WatchDropouts(nn::Module& model);
  void CheckDropout(const nn::Dropout& dropout, const Tensor& input) const;
  // Returns whether all gradients were finite.
  bool CheckGradients() const;

  const std::string plugin_;
  const comm::Mesh& mesh_;
  const nn::parallel::TensorParallel* parallel_;
  ContextPtr context_;
  optim::Optimizer* optimizer_ = nullptr;
  uint64_t hash_ = 0;  // of all inputs so far
  bool done_ = false;
  std::vector<Subscription> hooks_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_FIRST_STEP_WATCH_H_
