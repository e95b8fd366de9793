// SPDX-License-Identifier: Apache-2.0

// Two ranks, each a thread, that hold parts of the same parameters. An optimizer must compute the
// same as on one rank. The parts meet in the middle of a row, end in padding, and one may be empty.
#ifndef APOGEE_TESTS_OPTIM_SHARD_FIXTURE_H_
#define APOGEE_TESTS_OPTIM_SHARD_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <thread>

#include "apogee/optim/optimizer.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {

// The memory that two ranks share to add up their partials.
struct PairExchange {
  std::barrier<> barrier{2};
  std::array<std::vector<double>, 2> sums, maxima;
};

class PairReducer : public StatReducer {
 public:
  PairReducer(PairExchange& exchange, size_t rank) : exchange_(exchange), rank_(rank) {}
  void Reduce(StatBuffer& buffer) override {
    exchange_.sums[rank_] = Values(buffer.sum_values());
    exchange_.maxima[rank_] = Values(buffer.max_values());
    exchange_.barrier.arrive_and_wait();
    auto [sums, b] = exchange_.sums;
    for (size_t i = 0; i < b.size(); ++i) sums[i] += b[i];
    auto [maxima, d] = exchange_.maxima;
    for (size_t i = 0; i < d.size(); ++i) maxima[i] = std::max(maxima[i], d[i]);
    Store(buffer.sum_values(), sums);
    Store(buffer.max_values(), maxima);
    exchange_.barrier.arrive_and_wait();
  }

 private:
  static void Store(const Tensor& to, const std::vector<double>& values) {
    to.CopyFrom(Tensor::FromVector(values, to.shape(), HostOf(to.context())));
  }
  PairExchange& exchange_;
  size_t rank_;
};

using MakeFromParams = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterPtr>)>;

// Steps with random f64 gradients; each shard must end as its part of the whole, each replicated
// state as that of the whole.
inline void ExpectShardsEqualWhole(const MakeFromParams& make, int num_steps) {
  constexpr double kPadding = 1e30;
  const std::vector<Shape> shapes = {{5, 7}, {3, 4, 5}, {}, {11}, {1, 6}};
  const std::vector<int64_t> cuts = {17, 33, 1, 4, 3};  // rank 0 holds the elements before
  const auto gradient = [&](size_t p, int step) {
    return RandomValues(shapes[p].numel(), 100 * static_cast<uint64_t>(step) + p,
                        step % 4 == 3 ? 20 : 1);
  };
  const auto run = [&](int rank, PairExchange* exchange) {  // rank -1: the whole
    const ContextPtr context = TestContext();
    std::vector<ParameterPtr> params;
    std::vector<int64_t> begins, lengths;
    for (size_t p = 0; p < shapes.size(); ++p) {
      params.push_back(
          RandomParam(internal::Concat("p", p), shapes[p], DType::kF64, context, p + 1));
      begins.push_back(rank == 1 ? cuts[p] : 0);
      lengths.push_back((rank == 0 ? cuts[p] : shapes[p].numel()) - begins.back());
    }
    const auto part = [&](size_t p, const std::vector<double>& x) {
      std::vector<double> values(x.begin() + begins[p], x.begin() + begins[p] + lengths[p]);
      values.push_back(kPadding);
      return Tensor::FromVector(values, {lengths[p] + 1}, context);
    };
    std::unique_ptr<Optimizer> optimizer = make(params);
    for (size_t p = 0; p < shapes.size(); ++p) {
      std::vector<Segment> segments;
      if (lengths[p] > 0) segments.push_back({begins[p], lengths[p]});
      optimizer->views()[p].BindShard(part(p, Values(params[p]->data())),
                                      Layout(shapes[p], {segments, 1}));
      optimizer->views()[p].set_owner(rank < 0 || p % 2 == static_cast<size_t>(rank));
    }
    if (exchange != nullptr) {
      optimizer->set_stat_reducer(
          std::make_unique<PairReducer>(*exchange, static_cast<size_t>(rank)));
    }
    for (int step = 0; step < num_steps; ++step) {
      for (size_t p = 0; p < shapes.size(); ++p)
        optimizer->views()[p].set_grad(part(p, gradient(p, step)));
      optimizer->step();
    }
    return optimizer;
  };
  const std::unique_ptr<Optimizer> whole = run(-1, nullptr);
  PairExchange exchange;
  std::array<std::unique_ptr<Optimizer>, 2> ranks;
  std::thread other([&] { ranks[1] = run(1, &exchange); });
  ranks[0] = run(0, &exchange);
  other.join();

  for (size_t p = 0; p < shapes.size(); ++p) {
    const ParamView& expected = whole->views()[p];
    const std::vector<double> all = Values(expected.value());
    for (const int rank : {0, 1}) {
      const ParamView& view = ranks[static_cast<size_t>(rank)]->views()[p];
      const std::vector<double> local = Values(view.value());
      const size_t begin = rank == 0 ? 0 : static_cast<size_t>(cuts[p]);
      for (size_t i = 0; i + 1 < local.size(); ++i) {
        EXPECT_NEAR(local[i], all[begin + i], 1e-12)
            << shapes[p] << ", rank " << rank << ", element " << i;
      }
      EXPECT_EQ(local.back(), kPadding);
      for (const NamedState& state : view.states()) {
        if (state.kind == StateKind::kElementwise) continue;
        const std::vector<double> mine = Values(state.value),
                                  theirs = Values(expected.state(state.name));
        ASSERT_EQ(mine.size(), theirs.size());
        for (size_t i = 0; i < mine.size(); ++i) {
          EXPECT_NEAR(mine[i], theirs[i], 1e-12 * (1 + std::fabs(theirs[i]))) << state.name;
        }
      }
    }
  }
}

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_SHARD_FIXTURE_H_
