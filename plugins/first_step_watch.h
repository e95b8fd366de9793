// SPDX-License-Identifier: Apache-2.0

// FirstStepWatch: what would go wrong silently under a mesh, checked once: ranks that share one
// copy of the model get the same inputs, and, where each of them holds a parameter whole, the same
// gradients of it; and a dropout that no rule of the plan names gets the same input where the graph
// does not say that it is whole (frozen layers, the first layer of a pipeline's stage).
//
//   FirstStepWatch watch("hybrid_parallel", mesh, tensor_parallel, context);
//   watch.Attach(model, optimizer);      // after the inner plugin's hooks
//
// Communicates in the first step, and in those after it until all gradients were finite. Inputs are
// seen when the model is called; who calls parts of it tells Check.
#ifndef APOGEE_PLUGINS_FIRST_STEP_WATCH_H_
#define APOGEE_PLUGINS_FIRST_STEP_WATCH_H_

#include <memory>
#include <string>

#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class FirstStepWatch {
 public:
  // `parallel` may be null. Both it and the mesh must outlive the watch, which must outlive the
  // optimizer's last step.
  FirstStepWatch(std::string plugin, const comm::Mesh& mesh,
                 const nn::parallel::TensorParallel* parallel, ContextPtr context);
  void Attach(nn::Module& model, optim::Optimizer& optimizer);
  // As if the model had been called, and the check of a step. Collective.
  void Check(const Tensor& inputs);

 private:
  void Add(const Tensor& inputs);
  void CheckInputs(comm::Group& group) const;
  void WatchDropouts(nn::Module& model);
  void CheckDropout(const nn::Dropout& dropout, const Tensor& input) const;
  // Whether gradients were all finite.
  bool CheckGradients(optim::Optimizer& optimizer) const;

  const std::string plugin_;
  const comm::Mesh& mesh_;
  const nn::parallel::TensorParallel* parallel_;
  ContextPtr context_;
  uint64_t hash_ = 0;  // of all inputs so far
  bool done_ = false;
  std::shared_ptr<void> alive_ = std::make_shared<int>();
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_FIRST_STEP_WATCH_H_
