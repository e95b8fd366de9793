// SPDX-License-Identifier: Apache-2.0

// Tensors with values that are easy to predict, whole or as the part that one rank holds.
//
//   const TensorPart bias = Whole("bias", Counting(3));             // 0, 1, 2
//   const TensorPart cut = Columns(/*rank=*/0, /*ranks=*/2, true);  // half of a matrix's columns
#ifndef APOGEE_TESTS_CHECKPOINT_TENSOR_PARTS_H_
#define APOGEE_TESTS_CHECKPOINT_TENSOR_PARTS_H_

#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::checkpoint {
namespace hf_weights_test {

inline std::vector<float> Counting(int64_t count, float first = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

inline Tensor Vector(const std::vector<float>& values, DType dtype = DType::kF32) {
  return Tensor::FromVector<float>(values, {static_cast<int64_t>(values.size())}, CpuContext(),
                                   dtype);
}

// Columns [rank * 3, rank * 3 + 3) of a matrix of 4 rows and 3 * ranks columns, then padding.
inline TensorPart Columns(int rank, int ranks, bool fill, DType dtype = DType::kF32) {
  std::vector<Segment> segments;
  std::vector<float> values;
  for (int64_t row = 0; row < 4; ++row) {
    segments.push_back({row * 3 * ranks + 3 * rank, 3});
    for (int64_t i = 0; i < 3; ++i) {
      values.push_back(fill ? static_cast<float>(segments.back().begin + i) : -1);
    }
  }
  values.push_back(-7);
  return {"cut", Vector(values, dtype), Layout(Shape{4, 3 * ranks}, {.segments = segments})};
}

inline TensorPart Whole(const std::string& name, const std::vector<float>& values,
                        DType dtype = DType::kF32) {
  return {name, Vector(values, dtype), Layout(Shape{static_cast<int64_t>(values.size())})};
}

}  // namespace hf_weights_test
}  // namespace apogee::checkpoint

#endif  // APOGEE_TESTS_CHECKPOINT_TENSOR_PARTS_H_
