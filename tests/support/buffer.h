// Typed memory of kernel tests: filled from and read as doubles, so that one reference written in
// double serves every dtype.
//
//   Buffer x = Buffer::Normal(dtype, n, /*seed=*/1);     // values already rounded to dtype
//   std::vector<double> reference = Reference(x.values());
//   ExpectClose(y.values(), reference, Tolerance(dtype, ErrorKind::kElementwise));
#ifndef APOGEE_TESTS_SUPPORT_BUFFER_H_
#define APOGEE_TESTS_SUPPORT_BUFFER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/kernel_table.h"
#include "gtest/gtest.h"

namespace apogee {

inline constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};

class Buffer {
 public:
  // Filled with a pattern that no kernel writes, so that an element left out shows.
  Buffer(DType dtype, int64_t n)
      : dtype_(dtype), n_(n), bytes_(static_cast<size_t>(n * DTypeSize(dtype)), 0x5a) {}
  Buffer(DType dtype, const std::vector<double>& values)
      : Buffer(dtype, static_cast<int64_t>(values.size())) {
    DispatchAny(dtype, "Buffer", [&]<typename T>() {
      T* data = reinterpret_cast<T*>(bytes_.data());
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_arithmetic_v<T>) {
          data[i] = static_cast<T>(values[i]);
        } else {
          data[i] = T(static_cast<float>(values[i]));
        }
      }
    });
  }
  static Buffer Normal(DType dtype, int64_t n, unsigned seed, double deviation = 1) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0, deviation);
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) value = normal(engine);
    return Buffer(dtype, values);
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  DType dtype() const { return dtype_; }
  int64_t size() const { return n_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::vector<double> values() const {
    std::vector<double> values(static_cast<size_t>(n_));
    DispatchAny(dtype_, "Buffer", [&]<typename T>() {
      const T* data = reinterpret_cast<const T*>(bytes_.data());
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_arithmetic_v<T>) {
          values[i] = static_cast<double>(data[i]);
        } else {
          values[i] = static_cast<double>(static_cast<float>(data[i]));
        }
      }
    });
    return values;
  }

 private:
  DType dtype_;
  int64_t n_;
  std::vector<unsigned char> bytes_;
};

// The dtype of row statistics (mean, rstd, lse, loss) beside tensors of `dtype`.
inline DType StatisticDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

inline void ExpectClose(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance, double floor = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) || std::isinf(expected[i])) {
      ASSERT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
          << "element " << i << ": " << actual[i] << " instead of " << expected[i];
      continue;
    }
    const double limit = tolerance * std::max(floor, std::abs(expected[i]));
    ASSERT_LE(std::abs(actual[i] - expected[i]), limit)
        << "element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

// Runs `fn(context)`, which returns the bytes of its results, with 1, 2 and 3 threads, twice each.
inline void ExpectSameBits(
    const std::function<std::vector<unsigned char>(const DeviceContext&)>& fn) {
  const std::vector<unsigned char> expected = fn(*CpuContext({.num_threads = 1}));
  for (int threads : {1, 2, 3}) {
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(fn(*CpuContext({.num_threads = threads})), expected) << threads << " threads";
    }
  }
}

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_BUFFER_H_
