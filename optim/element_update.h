// SPDX-License-Identifier: Apache-2.0

// Element-wise updates. An element is a copyable object with the settings of an update; calling it
// updates one weight and its states. The CPU and CUDA run the same definition.
//
//   struct MomentumElement {
//     double lr, momentum;
//     template <typename C>
//     APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m) const {
//       m = C(momentum) * m + g;
//       w -= C(lr) * m;
//     }
//   };
//   UpdateElements(params, decision, MomentumElement{0.1, 0.9}, {"m"});   // in the rule's update
//
// C is the compute type: double for f64 parameters, else float. g is the gradient times the step's
// factor (clipping, loss scale). Gradients and working weights may have any floating dtype. Write
// C(1 - beta) where a setting is only rounded, so that it is computed in double.
//
// On the CPU the loop over an element runs on all threads of the context and is vectorised; compile
// with -O3 -fno-math-errno -fno-trapping-math, as the library does. For GPUs, compile a .cu file
// that includes element_update.cuh and names the element. Without it, a parameter on a GPU throws
// Error. A lambda may be an element on the CPU.
//
// An element may also have
//   static constexpr int kNumInputs = 1;            the last states are only read (const C&)
//   C Gradient(C factor, C grad) const              in place of factor * grad
//   void ForVariants(const Run& run) const          see ForValues
#ifndef APOGEE_OPTIM_ELEMENT_UPDATE_H_
#define APOGEE_OPTIM_ELEMENT_UPDATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "apogee/core/device_backends.h"
#include "apogee/core/device_context.h"
#include "apogee/core/dtype.h"
#include "apogee/core/error.h"
#include "apogee/optim/step/step_gate.h"

namespace apogee::optim {

struct ActiveParam;  // step/step.h

// The tensors of one parameter. They are contiguous and do not overlap.
struct UpdateChunk {
  void* weight;  // master weights, of the kernel's dtype
  const void* grad;
  DType grad_dtype;
  void* working;  // out: the weights rounded to working_dtype; or null
  DType working_dtype;
  int64_t n;
};

template <size_t kNumStates>
struct StatesChunk : UpdateChunk {
  std::array<void*, kNumStates> states;  // of the kernel's dtype
};
template <typename Element, size_t kNumStates>
struct ElementChunk : StatesChunk<kNumStates> {
  Element element;
};

// One call for all parameters of a compute dtype, f32 or f64.
template <typename E, size_t kNumStates>
struct ElementArgs {
  using Element = E;
  using Chunk = ElementChunk<Element, kNumStates>;
  static constexpr size_t kStates = kNumStates;

  DType dtype;
  GradFactor factor;  // of the gradients
  std::span<const Chunk> chunks;
};

// The gradient that an element is called with.
template <typename Element, typename C>
APOGEE_HOST_DEVICE C GradientOf(const Element& element, C factor, C grad) {
  if constexpr (requires { element.Gradient(factor, grad); }) {
    return element.Gradient(factor, grad);
  } else {
    return factor * grad;
  }
}

// Calls run(copy of element), where element.*member is one of `values`, a constant. The compiler
// then makes a loop for each value, and a branch on the member costs the loop nothing. For an
// element's ForVariants.
template <auto... values, typename Element, typename Owner, typename T, typename Run>
[[gnu::always_inline]] inline void ForValues(const Element& element, T Owner::*member,
                                             const Run& run) {
  const auto run_with = [&](T value) __attribute__((always_inline)) {
    Element copy = element;
    copy.*member = value;
    run(copy);
  };
  const bool listed = ((element.*member == values && (run_with(values), true)) || ...);
  APOGEE_CHECK(listed, "ForValues: the element has a value that is not listed");
}

// The loops of other backends than the CPU over the chunks of Args, an ElementArgs. A program that
// lacks one throws Error. APOGEE_CUDA_ELEMENT (element_update.cuh) adds CUDA's when it starts.
template <typename Args>
struct ElementKernels {
  using Function = void (*)(const DeviceContext& context, const Args& args);
#define APOGEE_COUNT_BACKEND(...) +1
  static constexpr size_t kNumBackends = 0 APOGEE_FOR_EACH_DEVICE_BACKEND(APOGEE_COUNT_BACKEND);
#undef APOGEE_COUNT_BACKEND
  static inline constinit std::array<Function, kNumBackends> of_device_type = {};

  static void Run(const DeviceContext& context, const Args& args);
};

namespace cpu {

// Calls fn(chunk, begin, n, weights, gradients), on the context's threads, so that every element of
// every chunk is in exactly one call. The pointers are those of element `begin`; gradients are
// converted to C first, and working weights are stored afterwards. C: float or double.
template <typename C>
using BlockFn = std::function<void(size_t, int64_t, int64_t, C*, const C*)>;
template <typename C>
void ForEachBlock(const DeviceContext& context, std::span<const UpdateChunk> chunks,
                  const BlockFn<C>& fn);

template <typename C, typename Element, typename... State>
[[gnu::always_inline]] inline void LoopOver(const Element element, int64_t n, C factor,
                                            C* __restrict w, const C* __restrict grad,
                                            State* __restrict... state) {
  for (int64_t i = 0; i < n; ++i) element(GradientOf(element, factor, grad[i]), w[i], state[i]...);
}

template <typename C, typename Args>
void RunElementsAs(const DeviceContext& context, const Args& args) {
  using Chunk = typename Args::Chunk;
  const auto factor = static_cast<C>(args.factor);
  const auto run = [&](size_t index, int64_t begin, int64_t n, C* w, const C* grad) {
    const Chunk& chunk = args.chunks[index];
    const auto loop = [&](const auto& element) __attribute__((always_inline)) {
      [&]<size_t... k>(std::index_sequence<k...>) __attribute__((always_inline)) {
        LoopOver<C>(element, n, factor, w, grad, static_cast<C*>(chunk.states[k]) + begin...);
      }
      (std::make_index_sequence<Args::kStates>());
    };
    if constexpr (requires { chunk.element.ForVariants(loop); }) {
      chunk.element.ForVariants(loop);
    } else {
      loop(chunk.element);
    }
  };
  const std::vector<UpdateChunk> chunks(args.chunks.begin(), args.chunks.end());
  ForEachBlock<C>(context, chunks, run);
}

template <typename Args>
void RunElements(const DeviceContext& context, const Args& args) {
  args.dtype == DType::kF64 ? RunElementsAs<double>(context, args)
                            : RunElementsAs<float>(context, args);
}

}  // namespace cpu

// Calls run(context, args) with the parameters of compute dtype f32, then with those of f64. Skips
// a dtype that no parameter has. element: an Element, or a function that returns that of an
// ActiveParam. states: the names of the states.
DType ComputeDTypeOf(const ActiveParam& param);
const DeviceContext& ContextOf(const ActiveParam& param);
UpdateChunk UpdateChunkOf(const ActiveParam& param);
void* StateOf(const ActiveParam& param, const char* state);
template <typename Element, typename Param, size_t kNumStates, typename MakeElement, typename Run>
void ForElementArgs(std::span<const Param> params, const GradFactor& factor,
                    const MakeElement& element, const std::array<const char*, kNumStates>& states,
                    const Run& run) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<ElementChunk<Element, kNumStates>> chunks;
    for (const Param& param : params) {
      if (ComputeDTypeOf(param) != dtype) continue;
      const auto make = [&] {
        if constexpr (std::is_invocable_v<const MakeElement&, const ActiveParam&>) {
          return Element{element(param)};
        } else {
          return Element{element};
        }
      };
      chunks.push_back({{UpdateChunkOf(param), {}}, make()});
      for (size_t k = 0; k < kNumStates; ++k) chunks.back().states[k] = StateOf(param, states[k]);
    }
    if (chunks.empty()) continue;
    run(ContextOf(params[0]), ElementArgs<Element, kNumStates>{dtype, factor, chunks});
  }
}

// Tells the context's kernel listener, if any, about an update of `numel` elements.
void TellKernelListener(const DeviceContext& context, DType dtype, int64_t numel);
// Throws the Error of an element without kernel.
[[noreturn]] void ThrowNoElementKernel(const DeviceContext& context, const std::type_info& element,
                                       size_t num_states);

template <typename Args>
void ElementKernels<Args>::Run(const DeviceContext& context, const Args& args) {
  if (context.is_host()) return cpu::RunElements(context, args);
  const Function run = of_device_type[static_cast<size_t>(context.device().type)];
  if (run == nullptr) ThrowNoElementKernel(context, typeid(typename Args::Element), Args::kStates);
  run(context, args);
}

// Updates the weights and states of `params`, which are on one device, and rounds the weights of
// 16-bit parameters. `factor` may be the step's decision: clipping and loss scale. element: see
// above, or a function that returns that of an ActiveParam, for settings that each parameter has of
// its own. Each rank calls it for the elements that it holds; it does not communicate.
template <typename MakeElement, size_t kNumStates = 0>
void UpdateElements(std::span<const ActiveParam> params, const GradFactor& factor,
                    const MakeElement& element,
                    const std::array<const char*, kNumStates>& states = {}) {
  const auto element_type = [&] {
    if constexpr (std::is_invocable_v<const MakeElement&, const ActiveParam&>) {
      return std::type_identity<std::invoke_result_t<const MakeElement&, const ActiveParam&>>();
    } else {
      return std::type_identity<MakeElement>();
    }
  }();
  using Element = typename decltype(element_type)::type;
  const auto run = [](const DeviceContext& context, const auto& args) {
    ElementKernels<std::remove_cvref_t<decltype(args)>>::Run(context, args);
    int64_t numel = 0;
    for (const auto& chunk : args.chunks) numel += chunk.n;
    TellKernelListener(context, args.dtype, numel);
  };
  ForElementArgs<Element>(params, factor, element, states, run);
}
template <typename MakeElement, size_t kNumStates>
void UpdateElements(std::span<const ActiveParam> params, const GradFactor& factor,
                    const MakeElement& element, const char* const (&states)[kNumStates]) {
  UpdateElements(params, factor, element, std::to_array(states));
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ELEMENT_UPDATE_H_
