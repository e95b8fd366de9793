// SPDX-License-Identifier: Apache-2.0

// Sets element i of a contiguous tensor, on any device.
//
//   SetElement(parameter->grad(), 4, INFINITY);
#ifndef APOGEE_TESTS_SUPPORT_SET_ELEMENT_H_
#define APOGEE_TESTS_SUPPORT_SET_ELEMENT_H_

#include <cstdint>

#include "apogee/tensor/tensor.h"

namespace apogee {

inline void SetElement(const Tensor& tensor, int64_t i, double value) {
  tensor.View({tensor.numel()}).Slice(0, i, 1).Fill(value);
}

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_SET_ELEMENT_H_
