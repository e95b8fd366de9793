// SPDX-License-Identifier: Apache-2.0

// A few neighbouring elements of a row or block that may end anywhere. Private to optim/cuda.
//
//   ForRun<4>(i, end, aligned, [&](const auto& at) {          // like the packs of packs.cuh
//     Pack<float, 4> x = at.template Load<float>(pointer);    // elements from `end` on are 0
//     at.Store(pointer, x);
//   });
#ifndef APOGEE_OPTIM_CUDA_DEVICE_RUNS_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_RUNS_CUH_

#include "apogee/optim/cuda/device/packs.cuh"

namespace apogee::optim::cuda {

// Elements [i, i + kCount) below `end`, one by one.
template <int kCount>
struct Run {
  int64_t i, end;

  __device__ bool Has(int k) const { return i + k < end; }
  __device__ int64_t Index(int k) const { return i + k; }
  template <typename C, typename T>
  __device__ Pack<C, kCount> Load(const T* x) const {
    Pack<C, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.at[k] = Has(k) ? Cast<C>(x[i + k]) : C(0);
    return pack;
  }
  template <typename T, typename C>
  __device__ void Store(T* y, const Pack<C, kCount>& pack) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (Has(k)) y[i + k] = Cast<T>(pack.at[k]);
    }
  }
};

// `aligned`: a vector of kCount elements from i on is aligned in every tensor.
template <int kCount, typename Fn>
__device__ __forceinline__ void ForRun(int64_t i, int64_t end, bool aligned, const Fn& fn) {
  if (aligned && i + kCount <= end) {
    fn(Neighbours<kCount>{i});
  } else if (i < end) {
    fn(Run<kCount>{i, end});
  }
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_RUNS_CUH_
