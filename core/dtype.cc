// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/dtype.h"

namespace apogee {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kF8E5M2:
      return "f8_e5m2";
  }
  return "?";
}

DType DTypeFromName(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kI32,
                      DType::kU8, DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  if (name == "fp32") return DType::kF32;
  if (name == "fp16") return DType::kF16;
  if (name == "fp64") return DType::kF64;
  Throw("unknown dtype \"", name,
        "\": use f32, bf16, f16, f64, i64, i32, u8, i8, f8_e4m3 or f8_e5m2");
}

int64_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  return 0;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

bool IsFloat8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

void ThrowNotFloat(const char* op, DType dtype) {
  if (IsFloat8(dtype)) {
    Throw(op, ": does not compute with ", DTypeName(dtype),
          ", which is for storage only; make it a floating dtype with ops::CastFromFloat8");
  }
  Throw(op, ": needs a floating dtype (f32, bf16, f16, f64), got ", DTypeName(dtype));
}

}  // namespace apogee
