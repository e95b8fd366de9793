// SPDX-License-Identifier: Apache-2.0

// The kernels of the optimizers with 1-bit messages, each against its formula, over several chunks
// of any length at any address.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apogee/optim/core/kernels.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace onebit_kernels_test {

using Values = std::vector<double>;

constexpr int64_t kLengths[] = {0, 1, 5, 1024, 4099, 40003};

// What the optimizers' tests hold and the kernels are given: `kOffset` elements of every tensor
// come before the chunk's.
struct Tensors {
  Tensors(DType dtype, DType grad_dtype, int64_t n, int64_t offset)
      : n(n), offset(offset), grad(Random(grad_dtype, 1)) {
    for (unsigned k = 0; k < 5; ++k) states.push_back(Random(dtype, 2 + k));
    // Second moments, a few of them 0.
    for (const size_t k : {2, 3}) {
      Values squares = states[k].values();
      for (double& x : squares) x = x < -1 ? 0 : x * x;
      states[k] = Buffer(dtype, squares);
    }
  }
  Buffer Random(DType dtype, unsigned seed) const {
    return Buffer::Normal(dtype, n + offset, seed + static_cast<unsigned>(n));
  }
  void* At(Buffer& buffer) const {
    return static_cast<char*>(buffer.data()) + offset * DTypeSize(buffer.dtype());
  }
  template <typename Chunk>
  Chunk Update() {
    Chunk chunk{};
    chunk.weight = At(states[0]);
    chunk.grad = At(grad);
    chunk.grad_dtype = grad.dtype();
    chunk.n = n;
    return chunk;
  }
  // Element by element, those before the chunk as they were.
  template <typename Fn>
  std::vector<Values> Expected(const Fn& fn) const {
    std::vector<Values> values;
    for (const Buffer& state : states) values.push_back(state.values());
    const Values g = grad.values();
    for (size_t i = static_cast<size_t>(offset); i < g.size(); ++i) {
      fn(g[i], values[0][i], values[1][i], values[2][i], values[3][i], values[4][i]);
    }
    return values;
  }
  void ExpectStates(const std::vector<Values>& expected) const {
    for (size_t k = 0; k < states.size(); ++k) {
      SCOPED_TRACE(::testing::Message() << n << " elements, state " << k);
      ExpectClose(states[k].values(), expected[k],
                  Tolerance(states[k].dtype(), ErrorKind::kReduction), 100);
    }
  }

  int64_t n, offset;
  Buffer grad;
  std::vector<Buffer> states;
};

class OneBitKernelsTest : public ::testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  std::vector<Tensors> Make(DType grad_dtype) const {
    std::vector<Tensors> tensors;
    for (const int64_t n : kLengths) {
      for (const int64_t offset : {0, 3}) tensors.emplace_back(dtype(), grad_dtype, n, offset);
    }
    return tensors;
  }
  std::vector<Tensors> Make() const { return Make(std::get<1>(GetParam())); }

  const ContextPtr context_ = TestContext({.num_threads = 2});
  const OptimKernels& kernels_ = OptimKernelsFor(*context_);
};

INSTANTIATE_TEST_SUITE_P(DTypes, OneBitKernelsTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kF64),
                                            ::testing::ValuesIn(kFloats)));

TEST_P(OneBitKernelsTest, Blend) {
  for (const bool with_from : {true, false}) {
    std::vector<Tensors> tensors = Make();
    std::vector<std::vector<Values>> expected;
    std::vector<BlendChunk> chunks;
    for (Tensors& t : tensors) {
      expected.push_back(t.Expected([&](double g, double& to, double from, double, double, double) {
        to = (with_from ? 0.75 * from : 0) + 0.5 * g;
      }));
      chunks.push_back({t.At(t.states[0]), with_from ? t.At(t.states[1]) : nullptr, t.At(t.grad),
                        t.grad.dtype(), 0.5, t.n});
    }
    kernels_.blend(*context_, {dtype(), 0.75, chunks});
    for (size_t k = 0; k < tensors.size(); ++k) tensors[k].ExpectStates(expected[k]);
  }
}

TEST_P(OneBitKernelsTest, BlendInPlace) {
  std::vector<Tensors> tensors = Make();
  std::vector<std::vector<Values>> expected;
  std::vector<BlendChunk> chunks;
  for (Tensors& t : tensors) {
    expected.push_back(t.Expected(
        [&](double g, double& to, double, double, double, double) { to = 0.75 * to + 0.5 * g; }));
    chunks.push_back(
        {t.At(t.states[0]), t.At(t.states[0]), t.At(t.grad), t.grad.dtype(), 0.5, t.n});
  }
  kernels_.blend(*context_, {dtype(), 0.75, chunks});
  for (size_t k = 0; k < tensors.size(); ++k) tensors[k].ExpectStates(expected[k]);
}

TEST_P(OneBitKernelsTest, FrozenAdam) {
  std::vector<Tensors> tensors = Make();
  std::vector<std::vector<Values>> expected;
  std::vector<FrozenAdamArgs::Chunk> chunks;
  for (Tensors& t : tensors) {
    expected.push_back(t.Expected([](double g, double& w, double& m, double v, double, double) {
      m = 0.75 * m + 0.5 * g;
      w -= 0.25 * (m / (std::sqrt(v) + 0.125) + 0.0625 * w);
    }));
    auto chunk = t.Update<FrozenAdamArgs::Chunk>();
    chunk.states = {t.At(t.states[1]), t.At(t.states[2])};
    chunk.element = {.beta = 0.75, .weight = 0.5, .step_size = 0.25, .eps = 0.125, .decay = 0.0625};
    chunks.push_back(chunk);
  }
  kernels_.frozen_adam(*context_, {dtype(), 1, chunks});
  for (size_t k = 0; k < tensors.size(); ++k) tensors[k].ExpectStates(expected[k]);
}

TEST_P(OneBitKernelsTest, LocalStep) {
  std::vector<Tensors> tensors = Make();
  std::vector<std::vector<Values>> expected;
  std::vector<LocalStepArgs::Chunk> chunks;
  for (Tensors& t : tensors) {
    expected.push_back(
        t.Expected([](double, double& w, double& anchor, double v, double& drift, double m) {
          anchor *= 0.875;
          drift = 0.875 * drift + 0.25 * m;
          w = anchor - drift / (std::sqrt(v) + 0.125);
        }));
    auto chunk = t.Update<LocalStepArgs::Chunk>();
    chunk.grad = t.At(t.states[4]);
    chunk.grad_dtype = dtype();
    chunk.states = {t.At(t.states[1]), t.At(t.states[3]), t.At(t.states[2])};
    chunk.element = {.lr = 0.25, .keep = 0.875, .eps = 0.125};
    chunks.push_back(chunk);
  }
  kernels_.local_step(*context_, {dtype(), 1, chunks});
  for (size_t k = 0; k < tensors.size(); ++k) tensors[k].ExpectStates(expected[k]);
}

// The sums come on top of what is there, the maximum replaces it; then the update.
TEST_P(OneBitKernelsTest, Lamb) {
  const DType stat_dtype = std::get<1>(GetParam()) == DType::kF64 ? DType::kF64 : dtype();
  if (!IsFloat(stat_dtype) || DTypeSize(stat_dtype) < 4) GTEST_SKIP() << "no statistics of it";
  std::vector<Tensors> tensors = Make(dtype());  // the momentum is of the kernel's dtype
  std::vector<std::vector<Values>> expected;
  std::vector<Values> expected_stats;
  std::vector<OneBitLambChunk> chunks;
  std::vector<Buffer> stats;
  stats.reserve(tensors.size());
  for (Tensors& t : tensors) {
    double directions = 0, updates = 0, largest = 0;
    expected.push_back(
        t.Expected([&](double m, double& w, double& previous, double v, double& fresh, double) {
          const double g = (m - 0.5 * previous) / 0.5, root = std::sqrt(v) + 0.125;
          fresh = 0.75 * fresh + 0.25 * g * g;
          directions += m / root * (m / root);
          updates += (m / root + 0.0625 * w) * (m / root + 0.0625 * w);
          if (v != 0) largest = std::max(largest, root / (std::sqrt(fresh) + 0.125));
          w -= 0.25 * (m / root + 0.0625 * w);
          previous = m;
        }));
    expected_stats.push_back({2 + directions, 3 + updates, largest});
    stats.emplace_back(stat_dtype, Values{2, 3, 1e9});
    auto chunk = t.Update<OneBitLambChunk>();
    chunk.exp_avg = t.At(t.states[1]);
    chunk.exp_avg_sq = t.At(t.states[2]);
    chunk.fresh = t.At(t.states[3]);
    chunk.sums = stats.back().data();
    chunk.max = static_cast<char*>(stats.back().data()) + 2 * DTypeSize(stat_dtype);
    chunk.step_size = 0.25;
    chunks.push_back(chunk);
  }
  const OneBitLambArgs args{dtype(), stat_dtype, 0.5, 0.75, 0.125, 0.0625, chunks};
  kernels_.onebit_lamb_sums(*context_, args);
  for (size_t k = 0; k < tensors.size(); ++k) {
    ExpectClose(stats[k].values(), expected_stats[k], Tolerance(dtype(), ErrorKind::kReduction));
  }
  kernels_.onebit_lamb(*context_, args);
  for (size_t k = 0; k < tensors.size(); ++k) tensors[k].ExpectStates(expected[k]);
}

}  // namespace onebit_kernels_test
}  // namespace apogee::optim
