// SPDX-License-Identifier: Apache-2.0

// Encodes whole tensors as 8-bit codes and decodes them.
#include "apogee/optim/cuda/device/code_tables.cuh"
#include "apogee/optim/cuda/kernels.h"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::optim::cuda {
namespace {

using apogee::cuda::CeilDiv;
using apogee::cuda::CheckCuda;
using apogee::cuda::ForEach;
using apogee::cuda::GridBlocks;
using apogee::cuda::kWarp;
using apogee::cuda::Launch;
using apogee::cuda::StreamContext;

constexpr int kThreads = 256;

// A warp finds the largest magnitude of each piece: a block of codes, or a part of the only block.
template <typename C>
__global__ void __launch_bounds__(kThreads) AbsMaxKernel(const C* values, int64_t n, int64_t piece,
                                                         bool one_block, MagnitudeBits<C>* maxima) {
  const int64_t pieces = (n + piece - 1) / piece, warps = int64_t{gridDim.x} * (kThreads / kWarp);
  const int64_t lane = threadIdx.x % kWarp;
  int64_t p = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  for (; p < pieces; p += warps) {
    const int64_t end = (p + 1) * piece < n ? (p + 1) * piece : n;
    MagnitudeBits<C> largest = 0;
    for (int64_t i = p * piece + lane; i < end; i += kWarp) {
      largest = MaxBits()(largest, BitsOfMagnitude(values[i]));
    }
    largest = apogee::cuda::WarpReduce(largest, MaxBits());
    if (lane == 0) atomicMax(maxima + (one_block ? 0 : p), largest);
  }
}

template <bool kSigned, typename C, typename S>
__global__ void __launch_bounds__(kThreads)
    EncodeKernel(CodeAddresses codes, const C* values, const S* scales, int64_t n, int64_t block,
                 uint8_t* out) {
  __shared__ CodeTable table;
  CopyTable<kThreads>(codes, table);
  __syncthreads();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const C scale = static_cast<C>(scales[i / block]);
    const BlockEncoder<kSigned, C> encode(scale, /*keep_sign=*/false);
    out[i] = static_cast<uint8_t>(encode(table, values[i]));
  }
}

template <typename C, typename S>
void QuantizeAs(const DeviceContext& context, const QuantizeArgs& args) {
  const C* values = static_cast<const C*>(args.values);
  S* scales = static_cast<S*>(args.scales);
  const bool one_block = args.block == 0;
  const int64_t block = one_block ? args.n : args.block;
  const int64_t piece = one_block ? 2048 : block;
  const int64_t num_scales = one_block ? 1 : CeilDiv(args.n, block);
  const int64_t bytes = num_scales * static_cast<int64_t>(sizeof(C));
  const Workspace maxima(context, bytes);
  const StreamContext& gpu = StreamContext::Of(context);
  gpu.Use();
  CheckCuda(cudaMemsetAsync(maxima.data<void>(), 0, static_cast<size_t>(bytes), gpu.stream()),
            "quantize: cudaMemsetAsync");
  const unsigned warps = GridBlocks(context, CeilDiv(args.n, piece), kThreads / kWarp);
  Launch(context, {.blocks = {warps}, .threads = {kThreads}}, &AbsMaxKernel<C>, values, args.n,
         piece, one_block, maxima.data<MagnitudeBits<C>>());
  const C* largest = maxima.data<C>();
  ForEach(context, num_scales,
          [=] __device__(int64_t b) { scales[b] = static_cast<S>(largest[b]); });
  if (args.n == 0) return;
  const CodeAddresses codes = CodesOnGpu(context, *args.map);
  // Each block of threads copies the tables, which is worth it for a few thousand elements.
  const unsigned blocks = GridBlocks(context, args.n, 16 * kThreads);
  Launch(context, {.blocks = {blocks}, .threads = {kThreads}},
         args.map->is_signed() ? &EncodeKernel<true, C, S> : &EncodeKernel<false, C, S>, codes,
         values, scales, args.n, block, args.codes);
}

template <typename C, typename S>
void DequantizeAs(const DeviceContext& context, const QuantizeArgs& args) {
  if (args.n == 0) return;
  const float* decoded = CodesOnGpu(context, *args.map).values;
  const S* scales = static_cast<const S*>(args.scales);
  const uint8_t* codes = args.codes;
  C* values = static_cast<C*>(args.values);
  const int64_t block = args.block == 0 ? args.n : args.block;
  ForEach(context, args.n, [=] __device__(int64_t i) {
    values[i] = static_cast<C>(decoded[codes[i]]) * static_cast<C>(scales[i / block]);
  });
}

}  // namespace

void quantize(const DeviceContext& context, const QuantizeArgs& args) {
  const bool wide = args.scale_dtype == DType::kF64;
  if (args.dtype == DType::kF64) {
    wide ? QuantizeAs<double, double>(context, args) : QuantizeAs<double, float>(context, args);
  } else {
    wide ? QuantizeAs<float, double>(context, args) : QuantizeAs<float, float>(context, args);
  }
}

void dequantize(const DeviceContext& context, const QuantizeArgs& args) {
  const bool wide = args.scale_dtype == DType::kF64;
  if (args.dtype == DType::kF64) {
    wide ? DequantizeAs<double, double>(context, args) : DequantizeAs<double, float>(context, args);
  } else {
    wide ? DequantizeAs<float, double>(context, args) : DequantizeAs<float, float>(context, args);
  }
}

}  // namespace apogee::optim::cuda
