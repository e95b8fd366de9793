// SPDX-License-Identifier: Apache-2.0

// Kernels for the live bits of 1-bit messages.
#include "apogee/comm/cuda/byte_sum.cuh"
#include "apogee/comm/cuda/kernels.h"
#include "apogee/comm/cuda/sign_lanes.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::comm::cuda {
namespace {

using apogee::cuda::CeilDiv;
using apogee::cuda::ForEach;

template <typename T>
void PackLiveAs(const DeviceContext& context, const PackLiveArgs& args) {
  const T* values = static_cast<const T*>(args.values);
  const int64_t n = args.num_values;
  const double floor = args.floor;
  uint8_t* bits = args.bits;
  ForEach(context, CeilDiv(n, kLanes), [=] __device__(int64_t b) {
    unsigned live = 0;
    for (int k = 0; k < kLanes && kLanes * b + k < n; ++k) {
      const auto x = static_cast<double>(values[kLanes * b + k]);
      live |= (x > floor && x < double{__builtin_huge_val()} ? 1u : 0u) << k;
    }
    bits[b] = static_cast<uint8_t>(live);
  });
}

template <typename T>
void Clear(const DeviceContext& context, const ClearArgs& args) {
  T* values = static_cast<T*>(args.values);
  const uint8_t* live = args.live;
  ForEach(context, args.num_values, [=] __device__(int64_t i) {
    if ((live[i / kLanes] >> (i % kLanes) & 1) == 0) values[i] = T{};
  });
}

}  // namespace

void pack_live(const DeviceContext& context, const PackLiveArgs& args) {
  if (args.value_dtype == DType::kU8) return PackLiveAs<uint8_t>(context, args);
  args.value_dtype == DType::kF64 ? PackLiveAs<double>(context, args)
                                  : PackLiveAs<float>(context, args);
}

void count_live(const DeviceContext& context, const CountLiveArgs& args) {
  const uint8_t* live = args.live;
  *args.count = SumOverBytes<int64_t>(context, args.num_bytes,
                                      [=] __device__(int64_t b) { return __popc(live[b]); });
}

void clear(const DeviceContext& context, const ClearArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce",
                [&]<typename T>() { Clear<T>(context, args); });
}

}  // namespace apogee::comm::cuda
