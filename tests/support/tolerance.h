// SPDX-License-Identifier: Apache-2.0

// The table of test tolerances: how far a result may be from the exact value, by dtype and kind of
// computation. Tolerances are relative to the exact value, or to a floor if that is larger (1
// unless a test says otherwise).
#ifndef APOGEE_TESTS_SUPPORT_TOLERANCE_H_
#define APOGEE_TESTS_SUPPORT_TOLERANCE_H_

#include "apogee/core/dtype.h"
#include "apogee/core/error.h"

namespace apogee {

enum class ErrorKind {
  kCopy,         // no rounding at all
  kElementwise,  // a few operations, one rounding on the store
  kReduction,    // sums over a row, and values derived from them
  kGemm,         // products over an inner dim
  kEndToEnd,     // a whole model or training run
};

inline double Tolerance(DType dtype, ErrorKind kind) {
  struct Row {
    double copy, elementwise, reduction, gemm, end_to_end;
  };
  const auto row = [dtype]() -> Row {
    switch (dtype) {
      case DType::kF64:
        return {0, 1e-14, 1e-13, 1e-12, 1e-10};
      case DType::kF32:
        return {0, 1e-6, 5e-6, 2e-5, 1e-4};
      case DType::kF16:
        return {0, 6e-4, 1.2e-3, 2e-3, 1e-2};
      case DType::kBF16:
        return {0, 5e-3, 1e-2, 1.6e-2, 5e-2};
      default:
        Throw("no tolerance for ", DTypeName(dtype));
    }
  }();
  switch (kind) {
    case ErrorKind::kCopy:
      return row.copy;
    case ErrorKind::kElementwise:
      return row.elementwise;
    case ErrorKind::kReduction:
      return row.reduction;
    case ErrorKind::kGemm:
      return row.gemm;
    case ErrorKind::kEndToEnd:
      return row.end_to_end;
  }
  Throw("no such kind of error");
}

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_TOLERANCE_H_
