// SPDX-License-Identifier: Apache-2.0

// Kernels of 1-bit messages. One thread works on the eight elements of one byte of signs.
#include <vector>

#include "apogee/comm/cuda/byte_sum.cuh"
#include "apogee/comm/cuda/kernels.h"
#include "apogee/comm/cuda/sign_lanes.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::comm::cuda {
namespace {

using apogee::cuda::ForEach;
using apogee::cuda::IsAligned16;

// Elements with their errors; `value` is null if there are no values.
template <typename T, typename C>
struct Compensated {
  const T* value;
  int64_t num_values;
  const C* error;
  Live live;
  bool value_aligned, error_aligned;

  __device__ __forceinline__ Lanes<C> At(int64_t b) const {
    Lanes<C> x = LoadLanes<C>(error + kLanes * b, kLanes, error_aligned);
    const int64_t count = num_values - kLanes * b;
    if (count > 0) {
      const Lanes<C> values = LoadLanes<C>(value + kLanes * b, count, value_aligned);
#pragma unroll
      for (int k = 0; k < kLanes; ++k) x.at[k] = values.at[k] + x.at[k];
    }
    return OnlyLive(x, live.At(b));
  }
};

template <typename T, typename C, typename Args>
Compensated<T, C> CompensatedOf(const Args& args) {
  return {static_cast<const T*>(args.value), args.num_values,
          static_cast<const C*>(args.error), {args.live, args.num_live},
          IsAligned16(args.value),           IsAligned16(args.error)};
}

template <typename T, typename C>
void PackAs(const DeviceContext& context, const PackArgs& args) {
  const auto compensated = CompensatedOf<T, C>(args);
  uint8_t* bits = args.bits;
  *args.squares = SumOverBytes<double>(context, args.numel / kLanes, [=] __device__(int64_t b) {
    const Lanes<C> x = compensated.At(b);
    bits[b] = static_cast<uint8_t>(SignBits(x));
    return SquareSum(x);
  });
}

template <typename C>
struct Sender {
  const uint8_t* bits;
  C share;  // a sign adds +share or -share to the mean
};

template <typename C>
void CollectAs(const DeviceContext& context, const CollectSignsArgs& args) {
  std::vector<Sender<C>> listed;
  for (size_t j = 0; j < args.sent.size(); ++j) {
    const double share = args.scales[j] / static_cast<double>(args.sent.size());
    listed.push_back({args.sent[j], static_cast<C>(share)});
  }
  const auto size = static_cast<int64_t>(listed.size() * sizeof(Sender<C>));
  const Workspace table(context, size);
  context.CopyFromHost(table.data<void>(), listed.data(), size);
  const Sender<C>* senders = table.data<Sender<C>>();
  const auto num_senders = static_cast<int>(listed.size());
  C* error = static_cast<C*>(args.error);
  const bool aligned = IsAligned16(error);
  const Live live{args.live, args.num_live};
  uint8_t* bits = args.bits;
  *args.squares = SumOverBytes<double>(context, args.numel / kLanes, [=] __device__(int64_t b) {
    Lanes<C> x{};
    for (int j = 0; j < num_senders; ++j) {
      const unsigned signs = senders[j].bits[b];
#pragma unroll
      for (int k = 0; k < kLanes; ++k) x.at[k] += Signed((signs >> k & 1) != 0, senders[j].share);
    }
    const Lanes<C> e = LoadLanes<C>(error + kLanes * b, kLanes, aligned);
#pragma unroll
    for (int k = 0; k < kLanes; ++k) x.at[k] += e.at[k];
    x = OnlyLive(x, live.At(b));
    StoreLanes(error + kLanes * b, x, kLanes, aligned);
    bits[b] = static_cast<uint8_t>(SignBits(x));
    return SquareSum(x);
  });
}

template <typename C>
void KeepErrorAs(const DeviceContext& context, const KeepErrorArgs& args) {
  C* error = static_cast<C*>(args.error);
  const C scale = static_cast<C>(args.scale);
  const bool aligned = IsAligned16(error);
  const Live live{args.live, args.num_live};
  ForEach(context, args.numel / kLanes, [=] __device__(int64_t b) {
    Lanes<C> x = LoadLanes<C>(error + kLanes * b, kLanes, aligned);
#pragma unroll
    for (int k = 0; k < kLanes; ++k) x.at[k] -= Signed(x.at[k] >= C(0), scale);
    StoreLanes(error + kLanes * b, OnlyLive(x, live.At(b)), kLanes, aligned);
  });
}

template <typename T, typename C>
void UnpackAs(const DeviceContext& context, const UnpackArgs& args) {
  const auto compensated = CompensatedOf<T, C>(args);
  T* value = static_cast<T*>(args.value);
  C* error = static_cast<C*>(args.error);
  const uint8_t* bits = args.bits;
  const C sent_scale = static_cast<C>(args.sent_scale), scale = static_cast<C>(args.scale);
  ForEach(context, args.numel / kLanes, [=] __device__(int64_t b) {
    const unsigned live = compensated.live.At(b);
    Lanes<C> x = compensated.At(b);
#pragma unroll
    for (int k = 0; k < kLanes; ++k) x.at[k] -= Signed(x.at[k] >= C(0), sent_scale);
    StoreLanes(error + kLanes * b, OnlyLive(x, live), kLanes, compensated.error_aligned);
    const int64_t count = compensated.num_values - kLanes * b;
    if (count <= 0) return;
    const unsigned signs = bits[b];
    Lanes<C> mean;
#pragma unroll
    for (int k = 0; k < kLanes; ++k) mean.at[k] = Signed((signs >> k & 1) != 0, scale);
    StoreLanes(value + kLanes * b, OnlyLive(mean, live), count, compensated.value_aligned);
  });
}

}  // namespace

void pack(const DeviceContext& context, const PackArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce", [&]<typename T>() {
    args.error_dtype == DType::kF64 ? PackAs<T, double>(context, args)
                                    : PackAs<T, float>(context, args);
  });
}
void collect(const DeviceContext& context, const CollectSignsArgs& args) {
  args.error_dtype == DType::kF64 ? CollectAs<double>(context, args)
                                  : CollectAs<float>(context, args);
}
void keep_error(const DeviceContext& context, const KeepErrorArgs& args) {
  args.error_dtype == DType::kF64 ? KeepErrorAs<double>(context, args)
                                  : KeepErrorAs<float>(context, args);
}
void unpack(const DeviceContext& context, const UnpackArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce", [&]<typename T>() {
    args.error_dtype == DType::kF64 ? UnpackAs<T, double>(context, args)
                                    : UnpackAs<T, float>(context, args);
  });
}

}  // namespace apogee::comm::cuda
