// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/runtime/cublas.h"
#include "apogee/tensor/cuda/runtime/own_product.h"

namespace apogee::cuda {
namespace {

template <typename T, typename To>
void Multiply(const DeviceContext& context, const MatMulArgs& args) {
  using C = ComputeType<T>;
  const T* const a = static_cast<const T*>(args.a);
  const T* const b = static_cast<const T*>(args.b);
  To* const c = static_cast<To*>(args.c);
  const int64_t m = args.m, n = args.n, k = args.k, ldc = args.ldc;
  const int64_t a_batch = args.a_batch, b_batch = args.b_batch, c_batch = args.c_batch;
  // The distances of two elements of a row, and of a column, of op(a) and op(b).
  const int64_t a_row = args.a_trans ? 1 : args.lda, a_col = args.a_trans ? args.lda : 1;
  const int64_t b_row = args.b_trans ? 1 : args.ldb, b_col = args.b_trans ? args.ldb : 1;
  const C alpha = static_cast<C>(args.alpha), beta = static_cast<C>(args.beta);
  ForEach(context, args.batch * m * n, [=] __device__(int64_t i) {
    const int64_t line = i / n, column = i - line * n, z = line / m, row = line - z * m;
    const T* const as = a + z * a_batch + row * a_row;
    const T* const bs = b + z * b_batch + column * b_col;
    C sum = 0;
    for (int64_t x = 0; x < k; ++x) sum += Load(as + x * a_col) * Load(bs + x * b_row);
    To* const to = c + z * c_batch + row * ldc + column;
    C value = alpha * sum;
    if (beta != 0) value += beta * static_cast<C>(Load(to));
    *to = Cast<To>(value);
  });
}

}  // namespace

void MatMulOwn(const DeviceContext& context, const MatMulArgs& args) {
  StreamContext::Of(context).cublas().Count(&CudaProducts::own);
  DispatchFloat(args.dtype, "matmul", [&]<typename T>() {
    if (args.c_dtype == args.dtype) return Multiply<T, T>(context, args);
    Multiply<T, float>(context, args);
  });
}

}  // namespace apogee::cuda
