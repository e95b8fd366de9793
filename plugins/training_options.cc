// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/training_options.h"

#include "apogee/core/dtype.h"
#include "apogee/core/status.h"
#include "apogee/core/text/enum_names.h"

namespace apogee {
namespace {

constexpr EnumName<Precision> kPrecisionNames[] = {
    {Precision::kF32, "f32"},   {Precision::kF32, "fp32"}, {Precision::kBf16, "bf16"},
    {Precision::kFp16, "fp16"}, {Precision::kFp16, "f16"}, {Precision::kF64, "f64"}};

}  // namespace

const char* Name(Precision precision) { return NameOf<Precision>(kPrecisionNames, precision); }

absl::StatusOr<Precision> ParsePrecision(const std::string& text) {
  if (text == "fp8" || text == DTypeName(DType::kF8E4M3) || text == DTypeName(DType::kF8E5M2)) {
    return InvalidArgument("precision \"", text,
                           "\": no training in 8-bit floats, which only store tensors "
                           "(tensor/ops/float8.h); use bf16");
  }
  return ParseName<Precision>("precision", kPrecisionNames, text);
}

DType DTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return DType::kF32;
    case Precision::kBf16:
      return DType::kBF16;
    case Precision::kFp16:
      return DType::kF16;
    case Precision::kF64:
      return DType::kF64;
  }
  Throw("precision: number ", static_cast<int>(precision), " is no value of Precision");
}

}  // namespace apogee
