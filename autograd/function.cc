// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/function.h"

namespace apogee::autograd::internal {

FunctionNodeBase::FunctionNodeBase(const char* name, const Tensors& inputs, const Tensors& outputs,
                                   const Tensors& saved)
    : Node(static_cast<int>(outputs.size())), name_(name) {
  for (const Tensor& x : inputs) inputs_.push_back({x.shape(), x.dtype(), x.context()});
  for (const Tensor& y : outputs) outputs_.push_back({y.shape(), y.dtype(), y.context()});
  for (const Tensor& tensor : saved) {
    APOGEE_CHECK(tensor.defined(), name, ": a saved tensor is undefined");
    saved_.emplace_back(tensor);
  }
}

Tensors FunctionNodeBase::Backward(Tensors grads, const BackwardContext& context) {
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) continue;
    grads[i] = Tensor::Zeros(outputs_[i].shape, outputs_[i].dtype, outputs_[i].context);
  }
  Tensors saved;
  for (SavedTensor& tensor : saved_) saved.push_back(tensor.Take(context));
  Tensors results = Run(grads, saved);
  APOGEE_CHECK(results.size() == inputs_.size(), name_, ": Backward returned ", results.size(),
               " gradients for ", inputs_.size(), " inputs");
  for (size_t i = 0; i < results.size(); ++i) {
    if (!wants(i)) results[i] = Tensor();
    if (!results[i].defined()) continue;
    APOGEE_CHECK(results[i].shape() == inputs_[i].shape && IsFloat(results[i].dtype()), name_,
                 ": Backward returned a gradient ", results[i].shape(), " of ",
                 DTypeName(results[i].dtype()), " for input ", i, ", which is ", inputs_[i].shape,
                 " of ", DTypeName(inputs_[i].dtype));
    results[i] = results[i].Detach();
  }
  return results;
}

void FunctionNodeBase::ReleaseSaved() {
  for (SavedTensor& tensor : saved_) tensor.Reset();
}

Tensors DetachedInputs(const char* name, const Tensors& inputs) {
  Tensors detached;
  for (size_t i = 0; i < inputs.size(); ++i) {
    APOGEE_CHECK(inputs[i].defined(), name, ": input ", i, " is undefined");
    inputs[i].CheckOpen();
    detached.push_back(inputs[i].Detach());
  }
  return detached;
}

void CheckOutputs(const char* name, const Tensors& outputs) {
  APOGEE_CHECK(!outputs.empty(), name, ": Forward returned no tensor");
  for (size_t i = 0; i < outputs.size(); ++i) {
    APOGEE_CHECK(outputs[i].defined(), name, ": Forward returned an undefined output ", i);
  }
}

}  // namespace apogee::autograd::internal
