// SPDX-License-Identifier: Apache-2.0

// Runs an optimizer on a parameter cut in two in the middle of a row, and on the whole.
#ifndef APOGEE_TESTS_OPTIM_SHARD_PAIR_H_
#define APOGEE_TESTS_OPTIM_SHARD_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <thread>
#include <utility>

#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {

// The reducer of two ranks, each a thread: adds and maximises their buffers, in rank order.
class PairReducer : public StatReducer {
 public:
  struct Shared {
    std::barrier<> barrier{2};
    std::vector<double> sums[2], maxima[2];
  };
  PairReducer(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  void Reduce(StatBuffer& buffer) override {
    shared_.sums[rank_] = Values(buffer.sum_values());
    shared_.maxima[rank_] = Values(buffer.max_values());
    shared_.barrier.arrive_and_wait();
    std::vector<double> sums = shared_.sums[0], maxima = shared_.maxima[0];
    EXPECT_EQ(sums.size(), shared_.sums[1].size());
    EXPECT_EQ(maxima.size(), shared_.maxima[1].size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += shared_.sums[1][i];
    for (size_t i = 0; i < maxima.size(); ++i)
      maxima[i] = std::max(maxima[i], shared_.maxima[1][i]);
    shared_.barrier.arrive_and_wait();
    const ContextPtr context = buffer.sum_values().context();
    buffer.sum_values().CopyFrom(Tensor::FromVector(sums, buffer.sum_values().shape(), context));
    buffer.max_values().CopyFrom(Tensor::FromVector(maxima, buffer.max_values().shape(), context));
  }

 private:
  Shared& shared_;
  int rank_;
};

// f64; `tolerance` of the update, 0 for the same bits.
template <typename OptimizerType, typename Options>
void ExpectShardsEqualWhole(const Shape& shape, int64_t cut, const Options& options, int steps,
                            double tolerance) {
  const int64_t n = shape.numel();
  const auto run = [&](int64_t begin, int64_t length, std::unique_ptr<StatReducer> reducer) {
    const ContextPtr context = TestContext();
    auto param = RandomParam("w", shape, DType::kF64, context, 1);
    OptimizerType optimizer({param}, options);
    const auto part = [&](const std::vector<double>& x) {
      std::vector<double> values(x.begin() + begin, x.begin() + begin + length);
      values.push_back(1e30);  // padding: must never count
      return Tensor::FromVector(values, {length + 1}, context);
    };
    ParamView& view = optimizer.views()[0];
    if (reducer != nullptr) {
      optimizer.set_stat_reducer(std::move(reducer));
      view.BindShard(part(Values(param->data())), Layout(shape, {.segments = {{begin, length}}}));
      view.set_owner(begin > 0);
    }
    for (int t = 0; t < steps; ++t) {
      const std::vector<double> g = RandomValues(n, 40 + static_cast<uint64_t>(t));
      view.sharded() ? view.set_grad(part(g))
                     : param->set_grad(Tensor::FromVector(g, shape, context));
      optimizer.step();
    }
    return Values(view.value());
  };
  const std::vector<double> whole = run(0, n, nullptr);
  const std::vector<double> init = Values(RandomTensor(shape, DType::kF64, TestContext(), 1));
  PairReducer::Shared shared;
  std::vector<double> parts[2];
  std::thread other(
      [&] { parts[1] = run(cut, n - cut, std::make_unique<PairReducer>(shared, 1)); });
  parts[0] = run(0, cut, std::make_unique<PairReducer>(shared, 0));
  other.join();
  for (std::vector<double>& x : parts) {
    EXPECT_EQ(x.back(), 1e30);
    x.pop_back();
  }
  parts[0].insert(parts[0].end(), parts[1].begin(), parts[1].end());
  EXPECT_NE(whole, init);
  if (tolerance == 0) {
    EXPECT_EQ(parts[0], whole);
  } else {
    EXPECT_LT(UpdateError(parts[0], whole, init), tolerance);
  }
}

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_SHARD_PAIR_H_
