// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/module_pass.h"

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/shape.h"

namespace apogee::nn {

void ModulePass::CheckAlive() const {
  APOGEE_CHECK(
      !module_.is_gone(),
      "backward: a module that took part in the forward has been destroyed since; keep the "
      "model until backward has run");
}

Tensor ModulePass::Enter(const std::shared_ptr<ModulePass>& pass, const Tensor& input) {
  if (pass->post_.empty() || !autograd::NeedsGrad({input})) return input;
  ++pass->num_inputs_;
  // An identity node; backward reaches it when the gradient of the input is complete.
  Tensor entered = autograd::View(autograd::Contiguous(input), input.shape());
  autograd::MetaOf(entered)->edge.node->AddPreHook([pass] {
    pass->CheckAlive();
    if (++pass->num_done_ == pass->num_inputs_) pass->Close();
  });
  return entered;
}

void ModulePass::Leave(const std::shared_ptr<ModulePass>& pass, const Tensor& output,
                       bool input_in_graph) {
  if (!autograd::NeedsGrad({output})) return;
  ++pass->num_outputs_;
  autograd::MetaOf(output)->edge.node->AddPreHook([pass, input_in_graph] {
    pass->CheckAlive();
    // With one output this is the first gradient, even if an earlier backward threw midway.
    if (pass->num_outputs_ > 1 && pass->is_open_) return;
    pass->Open();
    // If the first post hook came during forward, its input was not entered: the hook has missed
    // this pass.
    const bool missed = input_in_graph && pass->num_inputs_ == 0;
    const bool arrives = pass->num_inputs_ == 1 && pass->num_outputs_ == 1;
    if (arrives || missed || pass->post_.empty()) return;
    // Not every input's gradient is sure to arrive.
    autograd::QueueCallback([pass] {
      if (pass->is_open_) pass->Close();
    });
  });
}

void ModulePass::Open() {
  is_open_ = true;
  num_done_ = 0;
  pre_.Run(*module_);
}

void ModulePass::Close() {
  is_open_ = false;
  post_.Run(*module_);
}

}  // namespace apogee::nn
