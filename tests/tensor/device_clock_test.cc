// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/device_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/tensor.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace device_clock_test {

TEST(DeviceClock, HasAsManyTimesAsGapsBetweenMarks) {
  const ContextPtr context = TestContext();
  DeviceClock clock(context);
  EXPECT_TRUE(clock.Take().empty());
  clock.Mark();
  EXPECT_TRUE(clock.Take().empty());
  const Tensor x = Tensor::Zeros({100}, DType::kF32, context);
  for (int round = 0; round < 2; ++round) {  // Take forgets the marks
    for (int i = 0; i < 4; ++i) {
      clock.Mark();
      ops::Add(x, x);
    }
    const std::vector<double> seconds = clock.Take();
    ASSERT_EQ(seconds.size(), 3U);
    for (const double time : seconds) EXPECT_GE(time, 0);
    EXPECT_GT(std::accumulate(seconds.begin(), seconds.end(), 0.0), 0);
  }
}

TEST(DeviceClock, TellsMuchWorkFromLittle) {
  const ContextPtr context = TestContext();
  const Tensor small = Tensor::Zeros({1}, DType::kF32, context);
  const Tensor large = Tensor::Zeros({300'000}, DType::kF32, context);
  DeviceClock clock(context);
  // The shortest of several, because other programs run beside this one.
  double little = 1e9, much = 1e9;
  for (int i = 0; i < 5; ++i) {
    clock.Mark();
    ops::Add(small, small);
    clock.Mark();
    ops::Add(large, large);
    clock.Mark();
    const std::vector<double> seconds = clock.Take();
    little = std::min(little, seconds[0]);
    much = std::min(much, seconds[1]);
  }
  EXPECT_GT(much, little);
}

}  // namespace device_clock_test
}  // namespace apogee
