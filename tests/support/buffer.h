// SPDX-License-Identifier: Apache-2.0

// Typed memory for kernel tests. It is filled from doubles and read as doubles, so one reference in
// double serves every dtype.
//
//   Buffer x = Buffer::Normal(dtype, n, /*seed=*/1);     // values already rounded to dtype
//   std::vector<double> reference = Reference(x.values());
//   ExpectClose(y.values(), reference, Tolerance(dtype, ErrorKind::kElementwise));
//
// If tests run on a device, data() is the address of a copy there, made at the first call, and
// values() reads it back. Every copy has memory of its own, so an access beyond its end is a fault
// instead of a read of another tensor.
#ifndef APOGEE_TESTS_SUPPORT_BUFFER_H_
#define APOGEE_TESTS_SUPPORT_BUFFER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tests/support/test_context.h"
#include "gtest/gtest.h"

namespace apogee {

inline constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};

class Buffer {
 public:
  // Filled with a pattern that no kernel writes, so an element that a kernel skips is noticed.
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
    std::normal_distribution<double> normal;  // does not take a deviation of 0
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) value = deviation * normal(engine);
    return Buffer(dtype, values);
  }

  Buffer(const Buffer& other) : dtype_(other.dtype_), n_(other.n_), bytes_(other.bytes()) {}
  Buffer(Buffer&& other) = default;
  Buffer& operator=(const Buffer& other) {
    *this = Buffer(other);
    return *this;
  }
  Buffer& operator=(Buffer&& other) = default;

  void* data() { return Memory(); }
  const void* data() const { return Memory(); }
  DType dtype() const { return dtype_; }
  int64_t size() const { return n_; }
  const std::vector<unsigned char>& bytes() const {
    if (device_ != nullptr) {
      TestContexts::Get().Synchronize();
      DeviceMemory()->CopyToHost(bytes_.data(), device_.get(), static_cast<int64_t>(bytes_.size()));
    }
    return bytes_;
  }
  std::vector<double> values() const {
    bytes();
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
  // The context that holds the buffers; null if tests run on the CPU.
  static const ContextPtr& DeviceMemory() {
    static const ContextPtr context = TestsRunOnCuda() ? ValueOrThrow(CudaContext({.cache = false}))
                                      : TestDevice() == "cpu" ? nullptr
                                                              : TestContext();
    return context;
  }
  void* Memory() const {
    if (DeviceMemory() == nullptr) return bytes_.data();
    if (device_ == nullptr) {
      const auto size = static_cast<int64_t>(bytes_.size());
      const ContextPtr& memory = DeviceMemory();
      device_ = std::shared_ptr<void>(
          memory->allocator().Allocate(size, MemoryCategory::kActivation), [memory, size](void* p) {
            TestContexts::Get().Synchronize();
            memory->allocator().Free(p, size, MemoryCategory::kActivation);
          });
      memory->CopyFromHost(device_.get(), bytes_.data(), size);
      memory->Synchronize();
    }
    return device_.get();
  }

  DType dtype_;
  int64_t n_;
  mutable std::vector<unsigned char> bytes_;
  mutable std::shared_ptr<void> device_;
};

// The dtype of row statistics (mean, rstd, lse, loss) of tensors of `dtype`.
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

// Runs `fn(context)` with 1, 2 and 3 threads, twice each, and requires the same bytes as result.
inline void ExpectSameBits(
    const std::function<std::vector<unsigned char>(const DeviceContext&)>& fn) {
  const std::vector<unsigned char> expected = fn(*TestContext({.num_threads = 1}));
  for (int threads : {1, 2, 3}) {
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(fn(*TestContext({.num_threads = threads})), expected) << threads << " threads";
    }
  }
}

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_BUFFER_H_
