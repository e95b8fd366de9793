// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/staged_product.h"

#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

// The bytes from the first element to the last of `batch` stored matrices.
int64_t Bytes(DType dtype, int64_t batch, int64_t batch_stride, int64_t rows, int64_t ld,
              int64_t cols) {
  if (rows == 0 || cols == 0) return 0;
  return DTypeSize(dtype) * ((batch - 1) * batch_stride + (rows - 1) * ld + cols);
}

class Copy {
 public:
  // Allocates `bytes`, and copies them from `from` if `all`.
  Copy(const StreamContext& gpu, const void* from, int64_t bytes, bool all = true)
      : block_(gpu, bytes) {
    if (all) gpu.CopyWithin(data(), from, bytes);
  }
  void* data() const { return block_.data<void>(); }

 private:
  Workspace block_;
};

}  // namespace

void MatMulOfCopies(const StreamContext& pinned, const MatMulArgs& args) {
  const StreamContext& gpu = pinned.main();
  const auto stored = [&](bool trans, int64_t rows, int64_t ld, int64_t cols, int64_t stride) {
    return Bytes(args.dtype, args.batch, stride, trans ? cols : rows, ld, trans ? rows : cols);
  };
  const int64_t c_bytes = Bytes(args.c_dtype, args.batch, args.c_batch, args.m, args.ldc, args.n);
  const Copy a(gpu, args.a, stored(args.a_trans, args.m, args.lda, args.k, args.a_batch));
  const Copy b(gpu, args.b, stored(args.b_trans, args.k, args.ldb, args.n, args.b_batch));
  const Copy bias(gpu, args.bias, args.bias == nullptr ? 0 : args.n * DTypeSize(args.bias_dtype));
  // Elements that the product does not overwrite are copied, too, and written back as they were.
  const bool whole =
      args.beta == 0 && args.ldc == args.n && (args.batch == 1 || args.c_batch == args.m * args.n);
  const Copy c(gpu, args.c, c_bytes, /*all=*/!whole);
  MatMulArgs product = args;
  product.a = a.data();
  product.b = b.data();
  product.bias = args.bias == nullptr ? nullptr : bias.data();
  product.c = c.data();
  matmul(gpu, product);
  gpu.CopyWithin(args.c, product.c, c_bytes);
}

}  // namespace apogee::cuda
