// SPDX-License-Identifier: Apache-2.0

// Addends for which the order of a sum shows in its bits, in every float dtype. Two ranks hold a
// large number and its negative; the others hold numbers that lose digits when added to one of
// them.
//
//   const RoughSums sums(num_ranks, DType::kBF16, ReduceOp::kSum);
//   const Tensor x = sums.Addend(rank, 30000, context);
//   group->AllReduce(x);
//   sums.Check(x);                       // equals TreeReduce over all addends, bit for bit
#ifndef APOGEE_TESTS_SUPPORT_RUNS_ROUGH_SUMS_H_
#define APOGEE_TESTS_SUPPORT_RUNS_ROUGH_SUMS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "apogee/comm/tree_reduce.h"
#include "apogee/core/rng.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/tensor.h"

namespace apogee::testing {

// The bytes of `n` elements of one rank's addend.
inline std::string RoughAddend(size_t rank, size_t num_ranks, int64_t n, DType dtype) {
  // Sums must fit into f16, and the lost digits must show in f32 (24 bits) and f64 (53 bits).
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

// Large tensors repeat every kPeriod elements; a prime, so no two chunks are equal.
inline constexpr int64_t kPeriod = 16381;

// The inputs of a group of `size` ranks, and the result that they must all get.
class RoughSums {
 public:
  RoughSums(size_t size, DType dtype, comm::ReduceOp op)
      : dtype_(dtype), sum_(static_cast<size_t>(kPeriod * DTypeSize(dtype)), 0) {
    std::vector<const void*> inputs;
    for (size_t r = 0; r < size; ++r) addends_.push_back(RoughAddend(r, size, kPeriod, dtype));
    for (const std::string& addend : addends_) inputs.push_back(addend.data());
    void* const outputs[] = {sum_.data()};
    comm::TreeReduce("test", dtype, op, inputs, outputs, kPeriod);
  }
  Tensor Addend(int rank, int64_t n, const ContextPtr& context) const {
    const Tensor tensor = Tensor::Empty({n}, dtype_, context);
    const std::string& period = addends_[static_cast<size_t>(rank)];
    ForPeriods(tensor, [&](char* data, size_t bytes) { std::memcpy(data, period.data(), bytes); });
    return tensor;
  }
  void Check(const Tensor& tensor) const {
    int wrong = 0;
    ForPeriods(tensor, [&](const char* data, size_t bytes) {
      wrong += std::memcmp(data, sum_.data(), bytes) != 0;
    });
    EXPECT_EQ(wrong, 0) << "stretches of " << kPeriod << " of " << tensor.numel() << " elements";
  }

 private:
  template <typename Fn>
  void ForPeriods(const Tensor& tensor, const Fn& fn) const {
    for (int64_t at = 0; at < tensor.bytes(); at += std::ssize(sum_)) {
      fn(static_cast<char*>(tensor.raw()) + at,
         static_cast<size_t>(std::min<int64_t>(std::ssize(sum_), tensor.bytes() - at)));
    }
  }

  DType dtype_;
  std::vector<std::string> addends_;
  std::string sum_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_ROUGH_SUMS_H_
