// SPDX-License-Identifier: Apache-2.0

// Matrix products by cuBLASLt. Where it lacks a product's combination of dtypes, bias or epilogue,
// kernels here run before or after it. Where it needs aligned rows, or is slow without them, the
// product runs on aligned copies. Where it has nothing at all, a kernel of ours computes it. Each
// of these ways computes in f32 (f64 for f64) and rounds once.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/runtime/cublas.h"
#include "apogee/tensor/cuda/runtime/own_product.h"
#include "apogee/tensor/cuda/runtime/padded_product.h"
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

// Sums in C of all elements of a product, [batch, m, n] with aligned rows.
template <typename C>
class Sums {
 public:
  Sums(const DeviceContext& context, const MatMulArgs& args)
      : ld_(AlignedStride(args.n)),
        block_(context, args.batch * args.m * ld_ * int64_t{sizeof(C)}) {}
  // Makes the product write to the sums.
  void Receive(MatMulArgs& product) const {
    product.c = block_.data<C>();
    product.c_dtype = DTypeOf<C>();
    product.ldc = ld_;
    product.c_batch = product.m * ld_;
  }
  const C* data() const { return block_.data<C>(); }
  int64_t ld() const { return ld_; }

 private:
  int64_t ld_;
  Workspace block_;
};

// c = alpha * sums + beta * c + bias, computed in C and rounded once. sums: null for zeros.
template <typename T, typename C>
void FinishProduct(const DeviceContext& context, const MatMulArgs& args, const Sums<C>* sums) {
  T* const c = static_cast<T*>(args.c);
  const C* const from = sums == nullptr ? nullptr : sums->data();
  const int64_t ld = sums == nullptr ? 0 : sums->ld();
  const void* const bias = args.bias;
  const DType bias_dtype = args.bias_dtype;
  const C alpha = static_cast<C>(args.alpha), beta = static_cast<C>(args.beta);
  const int64_t m = args.m, n = args.n, ldc = args.ldc, c_batch = args.c_batch;
  ForEach(context, args.batch * m * n, [=] __device__(int64_t i) {
    const int64_t row = i / n, j = i - row * n, z = row / m;
    T* const to = c + z * c_batch + (row - z * m) * ldc + j;
    C value = from == nullptr ? C(0) : alpha * from[row * ld + j];
    if (beta != 0) value += beta * static_cast<C>(Load(to));
    if (bias != nullptr) value += LoadBias<C>(bias_dtype, bias, j);
    *to = Cast<T>(value);
  });
}

template <typename C>
void FinishAny(const DeviceContext& context, const MatMulArgs& args, const Sums<C>* sums) {
  DispatchFloat(args.c_dtype, "matmul",
                [&]<typename T>() { FinishProduct<T, C>(context, args, sums); });
}

// The product without its bias, for dtypes that cuBLASLt has.
void MatMulPlain(const DeviceContext& context, MatMulArgs args) {
  const StreamContext& gpu = StreamContext::Of(context);
  args.bias = nullptr;
  if (gpu.cublas().TryMatMul(gpu, args)) return;
  const PaddedOperands unaligned = OperandsToPad(args, 0);
  if (!unaligned.any()) return MatMulOwn(gpu, args);
  MatMulPadded(gpu, args, unaligned, [&](const MatMulArgs& part) {
    if (!gpu.cublas().TryMatMul(gpu, part)) MatMulOwn(gpu, part);
  });
}

// The product with the bias in f32, so that cuBLASLt adds it. `product` has another bias dtype.
// Returns false if cuBLASLt cannot.
bool TryWideBias(const DeviceContext& context, MatMulArgs product) {
  const StreamContext& gpu = StreamContext::Of(context);
  const Workspace wide(context, product.n * int64_t{sizeof(float)});
  float* const to = wide.data<float>();
  const void* const bias = product.bias;
  const DType dtype = product.bias_dtype;
  ForEach(context, product.n,
          [=] __device__(int64_t j) { to[j] = LoadBias<float>(dtype, bias, j); });
  product.bias = to;
  product.bias_dtype = DType::kF32;
  return gpu.cublas().TryMatMul(gpu, product);
}

// Rows may be unaligned.
template <typename C>
void MatMulOf(const DeviceContext& context, const MatMulArgs& args) {
  const StreamContext& gpu = StreamContext::Of(context);
  const bool takes = CublasHandle::Takes(args.dtype, args.c_dtype);
  if (takes && args.bias == nullptr) return MatMulPlain(context, args);
  if (takes && CublasHandle::TakesBias(args)) {
    if (gpu.cublas().TryMatMul(gpu, args)) return;
  } else if (takes && args.c_dtype == DType::kF32) {
    if (TryWideBias(context, args)) return;
  }
  MatMulArgs product = args;
  if (takes && args.c_dtype == DTypeOf<C>()) {
    // c is not rounded between the two steps, so the bias may be added first.
    FinishAny<C>(context, args, nullptr);
    product.beta = 1;
    return MatMulPlain(context, product);
  }
  const Sums<C> sums(context, args);
  sums.Receive(product);
  product.alpha = 1;
  product.beta = 0;
  MatMulPlain(context, product);
  FinishAny<C>(context, args, &sums);
}

template <typename C>
void MatMul(const DeviceContext& context, const MatMulArgs& args) {
  if (args.k == 0) return FinishAny<C>(context, args, nullptr);
  const PaddedOperands slow = OperandsToPad(args, kUsesThatPay);
  if (!slow.any()) return MatMulOf<C>(context, args);
  MatMulPadded(context, args, slow, [&](const MatMulArgs& part) { MatMulOf<C>(context, part); });
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
  const StreamContext& gpu = StreamContext::Of(context);
  const bool takes_bias = product.bias == nullptr || CublasHandle::TakesBias(product);
  if (gpu.allow_fast_gelu() && args.activation == Activation::kGeluTanh && takes_bias &&
      product.k > 0 && product.dtype == DType::kBF16 && product.c_dtype == DType::kBF16 &&
      gpu.cublas().TryGelu(gpu, args)) {
    return;
  }
  matmul(context, product);
  activation_forward(context, {.kind = args.activation,
                               .dtype = product.c_dtype,
                               .x = product.c,
                               .y = args.y,
                               .n = product.batch * product.m * product.n});
}

}  // namespace apogee::cuda
