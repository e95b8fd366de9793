// SPDX-License-Identifier: Apache-2.0

// From the parameters of a step to the calls of a kernel.
//
//   const LionElement element{...};
//   RunElements(&OptimKernels::lion, params, decision, element, {"exp_avg"});
//
//   RunKernel(params, &OptimKernels::lars, LarsArgs{.lr = o.lr, ...},
//             [](const ActiveParam& param) { return MakeUpdateChunk<LarsChunk>(param); });
#ifndef APOGEE_OPTIM_CORE_MAKE_CHUNKS_H_
#define APOGEE_OPTIM_CORE_MAKE_CHUNKS_H_

#include <array>
#include <span>
#include <type_traits>
#include <vector>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/step/step.h"

namespace apogee::optim {

// As UpdateElements, with a kernel of the library. `element` may be what an Element is made from.
template <typename Element, size_t kNumStates, typename MakeElement>
void RunElements(KernelSlot<ElementArgs<Element, kNumStates>> OptimKernels::*kernel,
                 std::span<const ActiveParam> params, const GradFactor& factor,
                 const MakeElement& element,
                 const std::type_identity_t<std::array<const char*, kNumStates>>& states) {
  ForElementArgs<Element>(params, factor, element, states,
                          [&](const DeviceContext& context, const auto& args) {
                            (OptimKernelsFor(context).*kernel)(context, args);
                          });
}

// A kernel chunk with the UpdateChunk fields of `param` filled in.
template <typename Chunk>
Chunk MakeUpdateChunk(const ActiveParam& param) {
  Chunk chunk{};
  static_cast<UpdateChunk&>(chunk) = UpdateChunkOf(param);
  return chunk;
}

// Calls run(dtype, chunks) for the parameters of compute dtype f32, then for those of f64. Skips a
// dtype that no parameter has.
template <typename Chunk, typename MakeChunk, typename Run>
void ForEachComputeDType(std::span<const ActiveParam> params, const MakeChunk& make,
                         const Run& run) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<Chunk> chunks;
    for (const ActiveParam& param : params) {
      if (param.view->compute_dtype() == dtype) chunks.push_back(make(param));
    }
    if (!chunks.empty()) run(dtype, std::span<const Chunk>(chunks));
  }
}

// Calls the kernel for each compute dtype, with `dtype` and `chunks` of `args` set.
template <typename Args, typename MakeChunk>
void RunKernel(std::span<const ActiveParam> params, KernelSlot<Args> OptimKernels::*kernel,
               Args args, const MakeChunk& make) {
  using Chunk = typename decltype(args.chunks)::value_type;
  ForEachComputeDType<Chunk>(params, make, [&](DType dtype, std::span<const Chunk> chunks) {
    const DeviceContext& context = *params[0].grad.context();
    args.dtype = dtype;
    args.chunks = chunks;
    (OptimKernelsFor(context).*kernel)(context, args);
  });
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_MAKE_CHUNKS_H_
