// SPDX-License-Identifier: Apache-2.0

// Storage in 8-bit floats (core/float8.h: e4m3 and e5m2). No gradient is recorded here.
//
//   Tensor codes = ops::CastToFloat8(x, DType::kF8E4M3, Float8Overflow::kSaturate);
//   Tensor again = ops::CastFromFloat8(codes, DType::kF32);             // exact
//   ops::ScaledFloat8 stored = ops::QuantizeFloat8(x, DType::kF8E4M3);  // with a scale
//   Tensor back = ops::DequantizeFloat8(stored, x.dtype());
//
// x is f32, bf16, f16 or f64, of any shape and strides; results are contiguous and on x's device.
// Any other op throws Error for a tensor of these dtypes, but for those that only move elements
// (copies, slices, gathers, broadcasts and gathers over ranks). On a GPU the work is queued. Every
// device computes the same bits.
#ifndef APOGEE_TENSOR_OPS_FLOAT8_H_
#define APOGEE_TENSOR_OPS_FLOAT8_H_

#include "apogee/core/float8.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// x rounded once to the nearest number of `dtype`, ties to even. `overflow`: the result for
// infinity and for numbers that are too large.
Tensor CastToFloat8(const Tensor& x, DType dtype, Float8Overflow overflow);

// Exact for every floating dtype, because each holds all numbers of both formats.
Tensor CastFromFloat8(const Tensor& x, DType dtype);

// codes / scale is the tensor. `scale` has one element, f32 (f64 for codes of an f64 tensor).
struct ScaledFloat8 {
  Tensor codes, scale;
};

// Scales by one power of two for the whole tensor, Float8Scale of its largest absolute value, and
// rounds once. It depends on nothing but x, so there is no state to save, and a tensor times a
// power of two gets the same codes. If x has a NaN or an infinity, all of codes is NaN.
ScaledFloat8 QuantizeFloat8(const Tensor& x, DType dtype);

// The numbers, exact in the dtype that was quantized. A narrower `dtype` rounds once.
Tensor DequantizeFloat8(const ScaledFloat8& stored, DType dtype);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_FLOAT8_H_
