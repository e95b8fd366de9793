// SPDX-License-Identifier: Apache-2.0

// The arguments of the kernels that convert to and from the 8-bit floats (see args.h).
#ifndef APOGEE_TENSOR_KERNELS_FLOAT8_ARGS_H_
#define APOGEE_TENSOR_KERNELS_FLOAT8_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/core/float8.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee {

// y[i] = x[i] * scale, rounded once to y_dtype, an 8-bit float.
struct Float8EncodeArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t n;
  Float8Overflow overflow;
  DeviceScalar scale = {};  // a power of two, or NaN
};

// y[i] = x[i] / scale, rounded once to y_dtype; x_dtype is an 8-bit float.
struct Float8DecodeArgs {
  DType x_dtype, y_dtype;
  const void* x;
  void* y;
  int64_t n;
  DeviceScalar scale = {};
};

// *scale = Float8Scale of the largest |x[i]| for numbers stored as `stored`. `scale` is of
// ComputeDType(x_dtype).
struct Float8ScaleArgs {
  DType x_dtype, stored;
  const void* x;
  int64_t n;
  void* scale;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_FLOAT8_ARGS_H_
