// SPDX-License-Identifier: Apache-2.0

// Matrix products by cuBLASLt. If it lacks a product's combination of dtypes, bias or epilogue,
// kernels here run before or after it.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/runtime/cublas.h"
#include "apogee/tensor/cuda/runtime/staged_product.h"

namespace apogee::cuda {
namespace {

template <typename C>
__device__ __forceinline__ C LoadBias(DType dtype, const void* bias, int64_t j) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<C>(static_cast<const float*>(bias)[j]);
    case DType::kBF16:
      return static_cast<C>(Load(static_cast<const BFloat16*>(bias) + j));
    case DType::kF16:
      return static_cast<C>(Load(static_cast<const Float16*>(bias) + j));
    default:
      return static_cast<C>(static_cast<const double*>(bias)[j]);
  }
}

// c = alpha * sums + beta * c + bias, computed in C and rounded once. sums is [batch, m, n], or
// null for zeros.
template <typename T, typename C>
void FinishProduct(const DeviceContext& context, const MatMulArgs& args, const C* sums) {
  T* const c = static_cast<T*>(args.c);
  const void* const bias = args.bias;
  const DType bias_dtype = args.bias_dtype;
  const C alpha = static_cast<C>(args.alpha), beta = static_cast<C>(args.beta);
  const int64_t m = args.m, n = args.n, ldc = args.ldc, c_batch = args.c_batch;
  ForEach(context, args.batch * m * n, [=] __device__(int64_t i) {
    const int64_t row = i / n, j = i - row * n, z = row / m;
    T* const to = c + z * c_batch + (row - z * m) * ldc + j;
    C value = sums == nullptr ? C(0) : alpha * sums[i];
    if (beta != 0) value += beta * static_cast<C>(Load(to));
    if (bias != nullptr) value += LoadBias<C>(bias_dtype, bias, j);
    *to = Cast<T>(value);
  });
}

template <typename C>
void FinishAny(const DeviceContext& context, const MatMulArgs& args, const C* sums) {
  DispatchFloat(args.c_dtype, "matmul",
                [&]<typename T>() { FinishProduct<T, C>(context, args, sums); });
}

// The product with the bias in f32, so that cuBLASLt adds it. `product` has another bias dtype.
void MatMulWideBias(const DeviceContext& context, MatMulArgs product) {
  const StreamContext& gpu = StreamContext::Of(context);
  const Workspace wide(context, product.n * int64_t{sizeof(float)});
  float* const to = wide.data<float>();
  const void* const bias = product.bias;
  const DType dtype = product.bias_dtype;
  ForEach(context, product.n,
          [=] __device__(int64_t j) { to[j] = LoadBias<float>(dtype, bias, j); });
  product.bias = to;
  product.bias_dtype = DType::kF32;
  gpu.cublas().MatMul(gpu, product);
}

template <typename C>
void MatMul(const DeviceContext& context, const MatMulArgs& args) {
  const StreamContext& gpu = StreamContext::Of(context);
  if (args.k == 0) return FinishAny<C>(context, args, nullptr);
  const bool takes = CublasHandle::Takes(args.dtype, args.c_dtype);
  if (takes && (args.bias == nullptr || CublasHandle::TakesBias(args))) {
    return gpu.cublas().MatMul(gpu, args);
  }
  if (takes && args.c_dtype == DType::kF32) return MatMulWideBias(context, args);
  MatMulArgs product = args;
  product.bias = nullptr;
  if (takes && args.c_dtype == DTypeOf<C>()) {
    // c is not rounded between the two steps, so the bias may be added first.
    FinishAny<C>(context, args, nullptr);
    product.beta = 1;
    return gpu.cublas().MatMul(gpu, product);
  }
  const Workspace sums(context, args.batch * args.m * args.n * int64_t{sizeof(C)});
  product.c = sums.data<C>();
  product.c_dtype = DTypeOf<C>();
  product.ldc = args.n;
  product.c_batch = args.m * args.n;
  product.alpha = 1;
  product.beta = 0;
  gpu.cublas().MatMul(gpu, product);
  FinishAny<C>(context, args, sums.data<C>());
}

// As cuBLASLt's epilogue: the GELU of the sums before they are rounded.
void MatMulGelu(const DeviceContext& context, const MatMulActivationArgs& args) {
  const StreamContext& gpu = StreamContext::Of(context);
  const MatMulArgs& product = args.product;
  const bool takes_bias = product.bias == nullptr || CublasHandle::TakesBias(product);
  if (product.k > 0 && takes_bias && gpu.cublas().TryGelu(gpu, args)) return;
  const int64_t n = product.batch * product.m * product.n;
  const Workspace sums(context, n * int64_t{sizeof(float)});
  MatMulArgs wide = product;
  wide.c = sums.data<float>();
  wide.c_dtype = DType::kF32;
  MatMul<float>(context, wide);
  const float* const from = sums.data<float>();
  BFloat16* const pre = static_cast<BFloat16*>(product.c);
  BFloat16* const y = static_cast<BFloat16*>(args.y);
  ForEach(context, n, [=] __device__(int64_t i) {
    pre[i] = Cast<BFloat16>(from[i]);
    y[i] = Cast<BFloat16>(GeluTanh::Forward(from[i]));
  });
}

}  // namespace

void matmul(const DeviceContext& context, const MatMulArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  const StreamContext& gpu = StreamContext::Of(context);
  if (gpu.is_pinned()) return MatMulOfCopies(gpu, args);
  if (args.dtype == DType::kF64) {
    MatMul<double>(context, args);
  } else {
    MatMul<float>(context, args);
  }
}

void matmul_group(const DeviceContext& context, const MatMulGroupArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) matmul(context, args.products[i]);
}

void matmul_activation(const DeviceContext& context, const MatMulActivationArgs& args) {
  const MatMulArgs& product = args.product;
  if (product.batch == 0 || product.m == 0 || product.n == 0) return;
  // f16 takes our own GELU: the fast tanh of cuBLASLt is not more precise than f16 itself.
  if (args.activation == Activation::kGeluTanh && product.dtype == DType::kBF16 &&
      product.c_dtype == DType::kBF16) {
    return MatMulGelu(context, args);
  }
  matmul(context, product);
  activation_forward(context, {.kind = args.activation,
                               .dtype = product.c_dtype,
                               .x = product.c,
                               .y = args.y,
                               .n = product.batch * product.m * product.n});
}

}  // namespace apogee::cuda
