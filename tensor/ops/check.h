// Checks that the ops share. Private to tensor/ops and autograd/functions.
#ifndef APOGEE_TENSOR_OPS_CHECK_H_
#define APOGEE_TENSOR_OPS_CHECK_H_

#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// A defined, contiguous tensor outside of any graph's view: copies a strided one.
inline Tensor Operand(const char* op, const char* name, const Tensor& x) {
  APOGEE_CHECK(x.defined(), op, ": ", name, " is undefined");
  return x.Detach().Contiguous();
}

inline void CheckSameDevice(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.device() == b.device(), op, ": operands need one device, got ",
               a.device().ToString(), " and ", b.device().ToString(), "; see Tensor::To(context)");
}

inline void CheckSameDType(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.dtype() == b.dtype(), op, ": operands need one dtype, got ", DTypeName(a.dtype()),
               " and ", DTypeName(b.dtype()));
  CheckSameDevice(op, a, b);
}

inline void CheckSameShape(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.shape() == b.shape(), op, ": operands need one shape, got ", a.shape(), " and ",
               b.shape());
}

// The dtype of saved statistics (mean, rstd, lse, loss): f64 for f64, else f32.
inline DType StatDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Check of indices on the host: i64 in [0, limit), or *ignored, on the device of `table`, which
// they index. Those on a GPU are fetched, which waits for it: a wrong one would read another's
// memory.
inline void CheckIndices(const char* op, const Tensor& ids, const Tensor& table, int64_t limit,
                         const int64_t* ignored) {
  CheckSameDevice(op, ids, table);
  APOGEE_CHECK(ids.dtype() == DType::kI64, op, ": indices must be i64, got ",
               DTypeName(ids.dtype()));
  const Tensor host = ids.Detach().Contiguous().ToHost();
  const int64_t* values = host.data<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const bool ok = (values[i] >= 0 && values[i] < limit) || (ignored && values[i] == *ignored);
    APOGEE_CHECK(ok, op, ": index ", values[i], " at position ", i, " is outside [0, ", limit, ")");
  }
}

// Rows of a tensor seen as a matrix whose columns are the last dim.
inline int64_t Rows(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_CHECK_H_
