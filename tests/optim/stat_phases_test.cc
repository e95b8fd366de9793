// SPDX-License-Identifier: Apache-2.0

// The statistics phases: an optimizer that needs row means and a norm of the whole tensor, written
// once, computes the same whether one rank holds the tensor or two hold ranges that meet in the
// middle of a row.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/optim/optimizer.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace stat_phases_test {

using ::testing::DoubleNear;
using ::testing::Pointwise;

struct ToyOptions {
  double lr = 0.1;
  static std::vector<OptionField<ToyOptions>> Fields() { return {{"lr", &ToyOptions::lr}}; }
};

// Phase 0: row sums of the gradient and its sum of squares. Phase 1: the largest deviation from a
// row's mean. w -= lr * (g - mean of the row) / (norm * largest).
class ToyRule : public RuleOf<ToyOptions> {
 public:
  static constexpr const char* kName = "toy";
  explicit ToyRule(std::vector<ToyOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override { return {.num_stat_phases = 2}; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override {
    for (const ActiveParam& p : params) {
      const MatrixView m = p.view->layout().matrix();
      phase == 0 ? buffer.AddSums(*p.view, m.batch * m.rows + 1) : buffer.AddMaxima(*p.view, 1);
    }
  }
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override {
    const std::span<const ActiveParam> params = step.params;
    for (size_t i = 0; i < params.size(); ++i) {
      const auto entry = phase == 0 ? buffer.sum_entries()[i] : buffer.max_entries()[i];
      ForEach(params[i], [&](int64_t row, double g, double&) {
        if (phase == 0) {
          buffer.sums<double>(entry.offset)[row] += g;
          buffer.sums<double>(entry.offset)[entry.count - 1] += g * g;
        } else {
          double& largest = buffer.maxima<double>(entry.offset)[0];
          largest = std::max(largest, std::fabs(g - RowMean(params[i], step.totals[0], i, row)));
        }
      });
    }
    return "";
  }
  void Update(const RuleStep& step) override {
    const std::span<const ActiveParam> params = step.params;
    const std::span<const StatBuffer> totals = step.totals;
    for (size_t i = 0; i < params.size(); ++i) {
      const auto sums = totals[0].sum_entries()[i];
      const double norm = std::sqrt(totals[0].sums<double>(sums.offset)[sums.count - 1]);
      const double largest = totals[1].maxima<double>(totals[1].max_entries()[i].offset)[0];
      ForEach(params[i], [&](int64_t row, double g, double& w) {
        w -=
            options(step.group).lr * (g - RowMean(params[i], totals[0], i, row)) / (norm * largest);
      });
      for (int64_t row = 0; row + 1 < sums.count; ++row) {
        params[i].view->state("row_mean").data<double>()[row] =
            RowMean(params[i], totals[0], i, row);
      }
    }
  }

 protected:
  void States(const Subject&, std::vector<StateSpec>& specs) const override {
    specs = {{"row_mean", StateKind::kRow}};
  }

 private:
  static double RowMean(const ActiveParam& p, const StatBuffer& totals, size_t i, int64_t row) {
    const double sum = totals.sums<double>(totals.sum_entries()[i].offset)[row];
    return sum / static_cast<double>(p.view->layout().matrix().cols);
  }
  template <typename Fn>
  static void ForEach(const ActiveParam& p, const Fn& fn) {
    double* w = p.view->master().data<double>();
    const double* g = p.grad.data<double>();
    ForEachRowPiece(p.view->layout(), [&](int64_t row, int64_t, int64_t begin, int64_t count) {
      for (int64_t k = begin; k < begin + count; ++k) fn(row, g[k], w[k]);
    });
  }
};

using Toy = OptimizerOf<ToyRule>;

// The partials of one rank, one entry per reduction of a step.
struct Partials {
  std::vector<std::vector<double>> sums, maxima;
};

// Records this rank's partials and adds what the other rank's were.
class RecordingReducer : public StatReducer {
 public:
  RecordingReducer(Partials other, Partials& own) : other_(std::move(other)), own_(own) {}
  void Reduce(StatBuffer& buffer) override {
    own_.sums.push_back(Values(buffer.sum_values()));
    own_.maxima.push_back(Values(buffer.max_values()));
    const size_t at = own_.sums.size() - 1;
    if (at >= other_.sums.size()) return;
    for (size_t i = 0; i < other_.sums[at].size(); ++i)
      buffer.sums<double>(0)[i] += other_.sums[at][i];
    for (size_t i = 0; at < other_.maxima.size() && i < other_.maxima[at].size(); ++i) {
      buffer.maxima<double>(0)[i] = std::max(buffer.maxima<double>(0)[i], other_.maxima[at][i]);
    }
  }

 private:
  Partials other_;
  Partials& own_;
};

// This rank's optimizer over elements [begin, begin + length) of a [5, 7] parameter.
struct Rank {
  Rank(const ContextPtr& context, int64_t begin, int64_t length) {
    const Shape shape{5, 7};
    param = RandomParam("w", shape, DType::kF64, context, 1);
    const std::vector<double> w = Values(param->data()), g = RandomValues(35, 2);
    const auto part = [&](const std::vector<double>& x) {
      std::vector<double> values(x.begin() + begin, x.begin() + begin + length);
      values.push_back(1e30);  // padding: must never count
      return Tensor::FromVector(values, {length + 1}, context);
    };
    optimizer = std::make_unique<Toy>(std::vector<ParameterPtr>{param}, ToyOptions{});
    ParamView& view = optimizer->views()[0];
    view.BindShard(part(w), Layout(shape, {.segments = {{begin, length}}}));
    view.set_grad(part(g));
  }
  ParameterPtr param;
  std::unique_ptr<Toy> optimizer;
};

TEST(StatPhasesTest, TwoShardsEqualTheWhole) {
  const ContextPtr context = CpuContext();
  Rank whole(context, 0, 35);
  whole.optimizer->step();
  const std::vector<double> expected = Values(whole.optimizer->views()[0].value());

  // Two ranks in one thread, played over and over: a rank's partials of a reduction are right once
  // the other's of the reduction before are, so after as many rounds as there are reductions all
  // are.
  constexpr int64_t kCut = 17;  // in the middle of the third row
  constexpr int kReductions = 3;
  Partials known[2];
  for (int round = 0; round <= kReductions; ++round) {
    Partials seen[2];
    for (const int rank : {0, 1}) {
      const int64_t begin = rank == 0 ? 0 : kCut;
      const int64_t length = rank == 0 ? kCut : 35 - kCut;
      Rank r(context, begin, length);
      r.optimizer->set_stat_reducer(
          std::make_unique<RecordingReducer>(known[1 - rank], seen[rank]));
      r.optimizer->step();
      EXPECT_EQ(seen[rank].sums.size(), static_cast<size_t>(kReductions));
      if (round < kReductions) continue;
      const std::vector<double> local = Values(r.optimizer->views()[0].value());
      for (int64_t i = 0; i < length; ++i) {
        EXPECT_NEAR(local[static_cast<size_t>(i)], expected[static_cast<size_t>(begin + i)], 1e-14);
      }
      EXPECT_EQ(local.back(), 1e30);
      EXPECT_NEAR(r.optimizer->last_step().grad_norm, whole.optimizer->last_step().grad_norm,
                  1e-13);
      // The row that is cut adds up in two parts.
      EXPECT_THAT(
          Values(r.optimizer->views()[0].state("row_mean")),
          Pointwise(DoubleNear(1e-14), Values(whole.optimizer->views()[0].state("row_mean"))));
    }
    known[0] = seen[0];
    known[1] = seen[1];
  }
}

// A parameter without a gradient here, but with one on another rank, takes part with a gradient of
// zeros.
TEST(StatPhasesTest, PresenceIsShared) {
  const ContextPtr context = CpuContext();
  Rank rank(context, 0, 35);
  rank.optimizer->views()[0].set_grad({});
  Partials own;
  rank.optimizer->set_stat_reducer(std::make_unique<RecordingReducer>(Partials{}, own));
  rank.optimizer->step();
  EXPECT_EQ(rank.optimizer->last_step().num_updated, 0);
  Partials other{{{1.0, 4.0}}, {}};  // the other rank: present, sum of squares 4
  rank.optimizer->set_stat_reducer(std::make_unique<RecordingReducer>(other, own = {}));
  rank.optimizer->step();
  EXPECT_EQ(rank.optimizer->last_step().num_updated, 1);
  EXPECT_EQ(rank.optimizer->last_step().grad_norm, 2);
}

// Ranks that hold the same elements count them once between them, and an update need not know: to
// it there is one replica, so that one that divides by their number is right, too.
TEST(StatPhasesTest, PartialsOfReplicasHaveTheirWeights) {
  const ContextPtr context = CpuContext();
  const ParameterPtr param = RandomParam("w", {5, 7}, DType::kF64, context, 1);
  ParamView replicated(param);
  replicated.BindParameter(Layout({5, 7}, {.segments = {{0, 35}}, .num_replicas = 4}));
  EXPECT_EQ(replicated.num_replicas(), 4);
  EXPECT_EQ(replicated.layout().num_replicas(), 1);
  // A shard of such a part has as many.
  replicated.BindShard(param->data().View({35}).Slice(0, 0, 7).Clone(),
                       Layout({5, 7}, {.segments = {{0, 7}}}));
  EXPECT_EQ(replicated.num_replicas(), 4);
  const ParamView whole(RandomParam("v", {3}, DType::kF64, context, 2));
  StatBuffer buffer(DType::kF64, context);
  buffer.AddSums(whole, 1);
  buffer.AddSums(replicated, 2);
  buffer.AddFromOwner(replicated, 1);
  buffer.AddSums(replicated, 1);
  buffer.AddMaxima(replicated, 1);
  buffer.Allocate();
  for (int64_t i = 0; i < 5; ++i) buffer.sums<double>(0)[i] = 8;
  buffer.maxima<double>(0)[0] = 8;
  buffer.CountReplicasOnce();
  EXPECT_EQ(Values(buffer.sum_values()), (std::vector<double>{8, 2, 2, 8, 2}));
  EXPECT_EQ(Values(buffer.max_values()), (std::vector<double>{8}));
}

// Two ranks that each hold the whole tensor step as one does.
TEST(StatPhasesTest, TwoReplicasEqualTheWhole) {
  const ContextPtr context = CpuContext();
  Rank whole(context, 0, 35);
  whole.optimizer->step();
  const std::vector<double> expected = Values(whole.optimizer->views()[0].value());
  Partials other;
  for (int round = 0; round <= 3; ++round) {
    const ParameterPtr param = RandomParam("w", {5, 7}, DType::kF64, context, 1);
    Toy optimizer({param}, {});
    optimizer.views()[0].BindParameter(Layout({5, 7}, {.segments = {{0, 35}}, .num_replicas = 2}));
    param->set_grad(Tensor::FromVector(RandomValues(35, 2), {5, 7}, context));
    Partials seen;
    optimizer.set_stat_reducer(std::make_unique<RecordingReducer>(other, seen));
    optimizer.step();
    other = seen;  // the other rank's are the same
    if (round == 3) {
      EXPECT_EQ(Values(param->data()),
                std::vector<double>(expected.begin(), expected.begin() + 35));
    }
  }
}

}  // namespace stat_phases_test
}  // namespace apogee::optim
