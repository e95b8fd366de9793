// Matrix products: cuBLASLt's, and what comes before or after them where it has no such product.
#include "apogee/tensor/cuda/cublas.h"
#include "apogee/tensor/cuda/device.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/cuda/launch.cuh"

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

// c = alpha * sums + beta * c + bias, in C, rounded once. sums [batch, m, n] or null.
template <typename T, typename C>
void Finish(const DeviceContext& context, const MatMulArgs& args, const C* sums) {
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
  DispatchFloat(args.c_dtype, "matmul", [&]<typename T>() { Finish<T, C>(context, args, sums); });
}

template <typename C>
void MatMul(const DeviceContext& context, const MatMulArgs& args) {
  const StreamContext& gpu = StreamContext::Of(context);
  if (args.k == 0) return FinishAny<C>(context, args, nullptr);
  const bool takes = CublasHandle::Takes(args.dtype, args.c_dtype);
  if (takes && (args.bias == nullptr || CublasHandle::TakesBias(args))) {
    return gpu.cublas().MatMul(gpu, args);
  }
  MatMulArgs product = args;
  product.bias = nullptr;
  if (takes && args.c_dtype == DTypeOf<C>()) {
    // What the sum is added to is not rounded: the bias may come first.
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

}  // namespace

void matmul(const DeviceContext& context, const MatMulArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (args.dtype == DType::kF64) {
    MatMul<double>(context, args);
  } else {
    MatMul<float>(context, args);
  }
}

}  // namespace apogee::cuda
