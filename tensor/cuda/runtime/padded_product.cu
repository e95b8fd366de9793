// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <optional>

#include "apogee/tensor/cuda/device/divisor.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/runtime/cublas.h"
#include "apogee/tensor/cuda/runtime/padded_product.h"

namespace apogee::cuda {
namespace {

constexpr int64_t kRowsOfPart = 128;  // a part of a product has a multiple of this many rows

// Stored matrices: `batch` of them, `stride` elements apart, with rows `ld` elements apart.
struct Stored {
  char* data;
  int64_t size;  // of an element, in bytes
  int64_t batch, stride, rows, ld, cols;

  // `as_row`: a dense column counts as the row that CublasHandle makes of it.
  bool IsAligned(bool as_row = true) const {
    const auto is = [](int64_t bytes) { return bytes % 16 == 0; };
    return is(static_cast<int64_t>(reinterpret_cast<uintptr_t>(data))) &&
           (rows == 1 || (as_row && cols == 1 && ld == 1) || is(ld * size)) &&
           (batch == 1 || is(stride * size));
  }
};

Stored Operand(DType dtype, const void* data, int64_t batch, int64_t stride, bool trans,
               int64_t rows, int64_t cols, int64_t ld) {
  return {.data = static_cast<char*>(const_cast<void*>(data)),
          .size = DTypeSize(dtype),
          .batch = batch,
          .stride = stride,
          .rows = trans ? cols : rows,
          .ld = ld,
          .cols = trans ? rows : cols};
}
Stored OperandA(const MatMulArgs& x) {
  return Operand(x.dtype, x.a, x.batch, x.a_batch, x.a_trans, x.m, x.k, x.lda);
}
Stored OperandB(const MatMulArgs& x) {
  return Operand(x.dtype, x.b, x.batch, x.b_batch, x.b_trans, x.k, x.n, x.ldb);
}
Stored OperandC(const MatMulArgs& x) {
  return Operand(x.c_dtype, x.c, x.batch, x.c_batch, false, x.m, x.n, x.ldc);
}

template <typename T>
void CopyRowsOf(const DeviceContext& context, const Stored& from, const Stored& to) {
  const T* const x = reinterpret_cast<const T*>(from.data);
  T* const y = reinterpret_cast<T*>(to.data);
  const int64_t n = from.batch * from.rows * from.cols;
  const int64_t cols = from.cols, from_ld = from.ld, to_ld = to.ld;
  const int64_t from_skip = from.stride - from.rows * from.ld;
  const int64_t to_skip = to.stride - to.rows * to.ld;
  const WideDivisor by_cols(from.cols, n), by_rows(from.rows, n);
  ForEach(context, n, [=] __device__(int64_t i) {
    const int64_t row = by_cols.Divide(i), column = i - row * cols, z = by_rows.Divide(row);
    y[row * to_ld + z * to_skip + column] = x[row * from_ld + z * from_skip + column];
  });
}

void CopyRows(const DeviceContext& context, const Stored& from, const Stored& to) {
  switch (from.size) {
    case 2:
      return CopyRowsOf<uint16_t>(context, from, to);
    case 4:
      return CopyRowsOf<uint32_t>(context, from, to);
    default:
      return CopyRowsOf<uint64_t>(context, from, to);
  }
}

// Memory for the matrices of `like` with aligned rows.
class Aligned {
 public:
  Aligned(const DeviceContext& context, const Stored& like)
      : stored_(like),
        block_(context, like.batch * like.rows * AlignedStride(like.cols) * like.size) {
    stored_.data = block_.data<char>();
    stored_.ld = AlignedStride(like.cols);
    stored_.stride = like.rows * stored_.ld;
  }
  const Stored& stored() const { return stored_; }

 private:
  Stored stored_;
  Workspace block_;
};

void MultiplyPart(const DeviceContext& context, const MatMulArgs& args, const PaddedOperands& which,
                  const std::function<void(const MatMulArgs&)>& multiply) {
  MatMulArgs product = args;
  std::optional<Aligned> a, c;
  if (which.a) {
    const Stored& to = a.emplace(context, OperandA(args)).stored();
    CopyRows(context, OperandA(args), to);
    product.a = to.data;
    product.lda = to.ld;
    product.a_batch = to.stride;
  }
  if (which.c) {
    const Stored& to = c.emplace(context, OperandC(args)).stored();
    if (args.beta != 0) CopyRows(context, OperandC(args), to);
    product.c = to.data;
    product.ldc = to.ld;
    product.c_batch = to.stride;
  }
  multiply(product);
  if (which.c) CopyRows(context, c->stored(), OperandC(args));
}

// The number of rows of c that a part has.
int64_t RowsOfPart(const MatMulArgs& args, const PaddedOperands& which, int64_t max_bytes) {
  if (args.batch > 1) return args.m;
  int64_t row_bytes = 0;
  if (which.a) row_bytes += (args.a_trans ? args.k : AlignedStride(args.k)) * DTypeSize(args.dtype);
  if (which.c) row_bytes += AlignedStride(args.n) * DTypeSize(args.c_dtype);
  if (row_bytes == 0) return args.m;
  const int64_t parts = CeilDiv(args.m * row_bytes, max_bytes);
  return CeilDiv(CeilDiv(args.m, parts), kRowsOfPart) * kRowsOfPart;
}

}  // namespace

PaddedOperands OperandsToPad(const MatMulArgs& args, int64_t min_uses) {
  if (DTypeSize(args.dtype) != 2) return {};
  return {.a = args.n >= min_uses && !OperandA(args).IsAligned(),
          .b = args.m >= min_uses && !OperandB(args).IsAligned(),
          .c = args.k >= min_uses && !OperandC(args).IsAligned(/*as_row=*/false)};
}

void MatMulPadded(const DeviceContext& context, const MatMulArgs& args, const PaddedOperands& which,
                  const std::function<void(const MatMulArgs&)>& multiply, int64_t max_bytes) {
  StreamContext::Of(context).cublas().Count(&CudaProducts::padded);
  MatMulArgs product = args;
  std::optional<Aligned> b;
  if (which.b) {
    const Stored& to = b.emplace(context, OperandB(args)).stored();
    CopyRows(context, OperandB(args), to);
    product.b = to.data;
    product.ldb = to.ld;
    product.b_batch = to.stride;
  }
  const int64_t rows = RowsOfPart(args, which, max_bytes);
  for (int64_t first = 0; first < args.m; first += rows) {
    MatMulArgs part = product;
    part.m = std::min(rows, args.m - first);
    part.a = static_cast<const char*>(args.a) +
             first * (args.a_trans ? 1 : args.lda) * DTypeSize(args.dtype);
    part.c = static_cast<char*>(args.c) + first * args.ldc * DTypeSize(args.c_dtype);
    MultiplyPart(context, part, which, multiply);
  }
}

}  // namespace apogee::cuda
