// SPDX-License-Identifier: Apache-2.0

// Checks that the ops share; each throws Error with the op's name. Private to tensor/ops and
// autograd/functions.
#ifndef APOGEE_TENSOR_OPS_CHECK_H_
#define APOGEE_TENSOR_OPS_CHECK_H_

#include <algorithm>

#include "apogee/tensor/graph_recorder.h"
#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// Returns x outside of any graph and contiguous (a strided x is copied). Throws Error if x is
// undefined or sealed.
inline Tensor Operand(const char* op, const char* name, const Tensor& x) {
  APOGEE_CHECK(x.defined(), op, ": ", name, " is undefined");
  x.CheckOpen();
  return x.Detach().Contiguous();
}

inline void CheckSameDevice(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.device() == b.device(), op, ": operands need one device, got ",
               a.device().ToString(), " and ", b.device().ToString(), "; see Tensor::To(context)");
}

inline void CheckSameDType(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.dtype() == b.dtype(), op, ": operands need one dtype, got ", DTypeName(a.dtype()),
               " and ", DTypeName(b.dtype()),
               "; cast one of them, with autograd::Cast(x, dtype). A plugin's precision casts the "
               "model's weights, but neither its inputs nor tensors of your own");
  CheckSameDevice(op, a, b);
}

inline void CheckSameShape(const char* op, const Tensor& a, const Tensor& b) {
  APOGEE_CHECK(a.shape() == b.shape(), op, ": operands need one shape, got ", a.shape(), " and ",
               b.shape());
}

// x, a floating tensor of one element, as a scalar that a kernel reads on the device.
inline DeviceScalar ScalarOperand(const char* op, const Tensor& x) {
  APOGEE_CHECK(x.defined() && x.numel() == 1 && IsFloat(x.dtype()), op,
               ": needs a gradient of one element of a floating dtype, got shape ", x.shape());
  return {.value = x.raw(), .dtype = x.dtype()};
}

// `values` is contiguous i64 on the host. Each must be in [0, limit) or equal *ignored.
inline void CheckIndexValues(const char* op, const Tensor& values, int64_t limit,
                             const int64_t* ignored) {
  const int64_t* data = values.data<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const bool ok = (data[i] >= 0 && data[i] < limit) || (ignored && data[i] == *ignored);
    APOGEE_CHECK(ok, op, ": index ", data[i], " at position ", i, " is outside [0, ", limit, ")");
  }
}

// How many of such values differ from `ignored`.
inline int64_t CountOthers(const Tensor& values, int64_t ignored) {
  const int64_t* data = values.data<int64_t>();
  return values.numel() - std::count(data, data + values.numel(), ignored);
}

// Checks indices into `table` on the host, and returns their values there. They must be i64, on the
// table's device, in [0, limit) or equal to *ignored. Indices on a GPU are fetched, which waits for
// the GPU: a kernel with a wrong index would read other tensors' memory. In a CUDA graph the check
// is repeated before every replay.
inline Tensor CheckIndices(const char* op, const Tensor& ids, const Tensor& table, int64_t limit,
                           const int64_t* ignored) {
  CheckSameDevice(op, ids, table);
  APOGEE_CHECK(ids.dtype() == DType::kI64, op, ": indices must be i64, got ",
               DTypeName(ids.dtype()));
  const Tensor contiguous = ids.Detach().Contiguous();
  GraphRecorder* const recorder = ids.context()->recorder();
  const Tensor host = recorder == nullptr
                          ? contiguous.ToHost()
                          : recorder->RequireIndices(op, contiguous, limit, ignored);
  CheckIndexValues(op, host, limit, ignored);
  return host;
}

// Throws Error in a capture. The host counts random numbers, so every replay would draw those of
// the capture.
inline void RefuseRandomInGraph(const char* op, const Tensor& x) {
  APOGEE_CHECK(x.context()->recorder() == nullptr, op,
               ": draws random numbers, and every replay of the CUDA graph that is being captured "
               "would draw the same ones; run this part eagerly, or without dropout (p = 0)");
}

// The number of rows of x seen as a matrix whose columns are the last dim.
inline int64_t Rows(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_CHECK_H_
