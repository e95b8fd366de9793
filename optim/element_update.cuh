// SPDX-License-Identifier: Apache-2.0

// The loop of a GPU over an element (element_update.h). For a .cu file, which nvcc compiles:
//
//   #include "apogee/optim/element_update.cuh"
//   #include "my_element.h"
//   APOGEE_CUDA_ELEMENT(MyElement, 2);              // outside of namespaces; 2 states
//
// Compile it with -std=c++20 --expt-relaxed-constexpr, and with --fmad=false for the bits that it
// would have without fused products. Link the object file itself, not a static library with it: the
// linker takes nothing from a library that it could do without.
#ifndef APOGEE_OPTIM_ELEMENT_UPDATE_CUH_
#define APOGEE_OPTIM_ELEMENT_UPDATE_CUH_

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "apogee/optim/cuda/device/update.cuh"
#include "apogee/optim/element_update.h"

#define APOGEE_CUDA_ELEMENT(Element, num_states)         \
  template struct apogee::optim::cuda::AddElementKernel< \
      apogee::optim::ElementArgs<Element, num_states>>

namespace apogee::optim::cuda {

// The element is the same for all chunks, so that it is in the GPU's constant memory.
template <typename C, typename Args>
struct ElementStep {
  using Chunk = StatesChunk<Args::kStates>;
  using Element = typename Args::Element;

  DeviceScale<C> factor;
  Element element;

  __device__ bool Open() { return factor.Open(); }
  __device__ bool Aligned(const Chunk& chunk) const {
    bool aligned = true;
    for (void* state : chunk.states) aligned = aligned && AreAligned(state);
    return aligned;
  }
  template <typename At>
  __device__ UpdatePack<C> operator()(const Chunk& chunk, const At& at) const {
    return Run(chunk, at, std::make_index_sequence<Args::kStates>());
  }

 private:
  // The number of states that the element writes.
  static constexpr int NumWritten() {
    if constexpr (requires { Element::kNumInputs; }) {
      return static_cast<int>(Args::kStates) - Element::kNumInputs;
    } else {
      return static_cast<int>(Args::kStates);
    }
  }
  template <typename At, size_t... s>
  __device__ __forceinline__ UpdatePack<C> Run(const Chunk& chunk, const At& at,
                                               std::index_sequence<s...>) const {
    UpdatePack<C> x[] = {LoadWeight<C>(chunk, at), LoadState<C>(chunk.states[s], at)...};
    const UpdatePack<C> grad = LoadGrad<C>(chunk, at);
#pragma unroll
    for (int k = 0; k < kUpdatePack; ++k) {
      element(GradientOf(element, factor.value, grad.at[k]), x[0].at[k], x[1 + s].at[k]...);
    }
    [[maybe_unused]] const auto store = [&](int state, const UpdatePack<C>& pack) {
      if (state < NumWritten()) StoreState(chunk.states[state], at, pack);
    };
    (store(static_cast<int>(s), x[1 + s]), ...);
    return x[0];
  }
};

template <typename Element>
bool IsSame(const Element& a, const Element& b) {
  if constexpr (requires { a == b; }) {
    return a == b;
  } else {
    return std::memcmp(&a, &b, sizeof(Element)) == 0;
  }
}

template <typename C, typename Args>
void RunElementsAs(const DeviceContext& context, const Args& args) {
  using Step = ElementStep<C, Args>;
  std::vector<typename Args::Chunk> rest(args.chunks.begin(), args.chunks.end());
  while (!rest.empty()) {
    const auto& first = rest.front();
    const auto end = std::stable_partition(rest.begin(), rest.end(), [&](const auto& chunk) {
      return &chunk == &first || IsSame(chunk.element, first.element);
    });
    const std::vector<typename Step::Chunk> same(rest.begin(), end);
    UpdateChunks<C>(context, std::span<const typename Step::Chunk>(same),
                    Step{DeviceScale<C>(args.factor), first.element});
    rest.erase(rest.begin(), end);
  }
}

template <typename Args>
void RunElements(const DeviceContext& context, const Args& args) {
  args.dtype == DType::kF64 ? RunElementsAs<double>(context, args)
                            : RunElementsAs<float>(context, args);
}

// Its explicit instantiation adds the kernel when the program starts.
template <typename Args>
struct AddElementKernel {
  static const bool added;
};
template <typename Args>
const bool AddElementKernel<Args>::added = [] {
  ElementKernels<Args>::of_device_type[static_cast<size_t>(DeviceType::kCuda)] = &RunElements<Args>;
  return true;
}();

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_ELEMENT_UPDATE_CUH_
