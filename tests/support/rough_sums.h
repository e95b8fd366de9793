// Addends whose order shows in the bits of their sum, in every float dtype: two ranks hold a large
// number and its opposite, and the others numbers that lose digits wherever they meet one of them.
//
//   const std::string bytes = RoughAddend(rank, num_ranks, 1000, DType::kBF16);
#ifndef APOGEE_TESTS_SUPPORT_ROUGH_SUMS_H_
#define APOGEE_TESTS_SUPPORT_ROUGH_SUMS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "apogee/core/rng.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/tensor.h"

namespace apogee::testing {

// The bytes of `n` elements.
inline std::string RoughAddend(size_t rank, size_t num_ranks, int64_t n, DType dtype) {
  // Their sums must fit into f16, and show in f32, or f64, after 24 digits, or 53.
  const double large = dtype == DType::kF64 ? 0x1p40 : 0x1p12;
  const double small = dtype == DType::kF64 ? 0x1p-14 : 0x1p-8;
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const auto common = Philox({7, 1}, static_cast<uint64_t>(i));
    const auto own = Philox({7, 2 + static_cast<uint32_t>(rank)}, static_cast<uint64_t>(i));
    const size_t plus = common[0] % num_ranks;
    const size_t minus = (plus + 1 + common[1] % std::max<size_t>(1, num_ranks - 1)) % num_ranks;
    const double big = large * (1 + static_cast<double>(ToUniform(common[2])));
    values.push_back(rank == plus    ? big
                     : rank == minus ? -big
                                     : small * (static_cast<double>(ToUniform(own[0])) - 0.5) / 3);
  }
  const Tensor tensor =
      Tensor::FromVector<double>(values, {n}, CpuContext({.num_threads = 1}), dtype);
  return n == 0 ? std::string()
                : std::string(static_cast<const char*>(tensor.raw()),
                              static_cast<size_t>(tensor.bytes()));
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_ROUGH_SUMS_H_
