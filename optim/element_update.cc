// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/element_update.h"

#include <cxxabi.h>

#include <cstdlib>

#include "apogee/optim/step/step.h"
#include "apogee/tensor/kernels/work.h"

namespace apogee::optim {

DType ComputeDTypeOf(const ActiveParam& param) { return param.view->compute_dtype(); }

const DeviceContext& ContextOf(const ActiveParam& param) { return *param.grad.context(); }

UpdateChunk UpdateChunkOf(const ActiveParam& param) {
  ParamView& view = *param.view;
  UpdateChunk chunk{};
  chunk.weight = view.master().raw();
  chunk.grad = param.grad.raw();
  chunk.grad_dtype = param.grad.dtype();
  if (view.needs_master()) {
    chunk.working = view.value().raw();
    chunk.working_dtype = view.value().dtype();
  }
  chunk.n = view.layout().local_numel();
  return chunk;
}

void* StateOf(const ActiveParam& param, const char* state) {
  const Tensor tensor = param.view->state(state);
  APOGEE_CHECK(tensor.defined(), "UpdateElements: parameter \"", param.view->name(),
               "\" has no state \"", state, "\"; the optimizer must declare it");
  return tensor.raw();
}

void TellKernelListener(const DeviceContext& context, DType dtype, int64_t numel) {
  KernelListener* const listener = context.kernel_listener();
  if (listener == nullptr) return;
  const double bytes = kPassesOverMemory * SizeProduct(numel, DTypeSize(dtype));
  listener->OnKernel({.name = "update_elements", .dtype = dtype, .flops = 0, .bytes = bytes});
}

void ThrowNoElementKernel(const DeviceContext& context, const std::type_info& element,
                          size_t num_states) {
  char* const demangled = abi::__cxa_demangle(element.name(), nullptr, nullptr, nullptr);
  const std::string name = demangled == nullptr ? element.name() : demangled;
  std::free(demangled);
  Throw("UpdateElements: ", name, " has no kernel for ", context.device().ToString(),
        "; link a .cu file that includes apogee/optim/element_update.cuh and says "
        "APOGEE_CUDA_ELEMENT(",
        name, ", ", num_states, ")");
}

}  // namespace apogee::optim
