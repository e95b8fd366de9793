// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/float8.h"

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {
namespace {

void CheckFloat(const char* op, const char* what, DType dtype) {
  APOGEE_CHECK(IsFloat(dtype), op, ": ", what, " must be f32, bf16, f16 or f64, got ",
               DTypeName(dtype));
}
void CheckFloat8(const char* op, const char* what, DType dtype) {
  APOGEE_CHECK(IsFloat8(dtype), op, ": ", what, " must be f8_e4m3 or f8_e5m2, got ",
               DTypeName(dtype));
}

Tensor Encode(const Tensor& x, DType dtype, Float8Overflow overflow, const DeviceScalar& scale) {
  const Tensor codes = Tensor::Empty(x.shape(), dtype, x.context());
  x.context()->kernels().float8_encode(*x.context(), {.x_dtype = x.dtype(),
                                                      .y_dtype = dtype,
                                                      .x = x.raw(),
                                                      .y = codes.raw(),
                                                      .n = x.numel(),
                                                      .overflow = overflow,
                                                      .scale = scale});
  return codes;
}

Tensor Decode(const Tensor& codes, DType dtype, const DeviceScalar& scale) {
  const Tensor y = Tensor::Empty(codes.shape(), dtype, codes.context());
  codes.context()->kernels().float8_decode(*codes.context(), {.x_dtype = codes.dtype(),
                                                              .y_dtype = dtype,
                                                              .x = codes.raw(),
                                                              .y = y.raw(),
                                                              .n = codes.numel(),
                                                              .scale = scale});
  return y;
}

}  // namespace

Tensor CastToFloat8(const Tensor& x, DType dtype, Float8Overflow overflow) {
  constexpr const char* kOp = "CastToFloat8";
  const Tensor from = Operand(kOp, "x", x);
  CheckFloat(kOp, "x", x.dtype());
  CheckFloat8(kOp, "the dtype", dtype);
  return Encode(from, dtype, overflow, {});
}

Tensor CastFromFloat8(const Tensor& x, DType dtype) {
  constexpr const char* kOp = "CastFromFloat8";
  const Tensor codes = Operand(kOp, "x", x);
  CheckFloat8(kOp, "x", x.dtype());
  CheckFloat(kOp, "the dtype", dtype);
  return Decode(codes, dtype, {});
}

ScaledFloat8 QuantizeFloat8(const Tensor& x, DType dtype) {
  constexpr const char* kOp = "QuantizeFloat8";
  const Tensor from = Operand(kOp, "x", x);
  CheckFloat(kOp, "x", x.dtype());
  CheckFloat8(kOp, "the dtype", dtype);
  const Tensor scale = Tensor::Empty({1}, ComputeDType(x.dtype()), x.context());
  x.context()->kernels().float8_scale(*x.context(), {.x_dtype = x.dtype(),
                                                     .stored = dtype,
                                                     .x = from.raw(),
                                                     .n = from.numel(),
                                                     .scale = scale.raw()});
  // Nothing is too large after scaling; NaN stays NaN.
  const Tensor codes = Encode(from, dtype, Float8Overflow::kNonFinite, ScalarOperand(kOp, scale));
  return {.codes = codes, .scale = scale};
}

Tensor DequantizeFloat8(const ScaledFloat8& stored, DType dtype) {
  constexpr const char* kOp = "DequantizeFloat8";
  const Tensor codes = Operand(kOp, "codes", stored.codes);
  const Tensor scale = Operand(kOp, "scale", stored.scale);
  CheckFloat8(kOp, "codes", codes.dtype());
  CheckFloat(kOp, "the dtype", dtype);
  CheckSameDevice(kOp, codes, scale);
  APOGEE_CHECK(scale.numel() == 1 && ComputeDType(scale.dtype()) == scale.dtype(), kOp,
               ": the scale must be one number of f32 or f64, got ", scale.shape(), " of ",
               DTypeName(scale.dtype()));
  return Decode(codes, dtype, ScalarOperand(kOp, scale));
}

}  // namespace apogee::ops
