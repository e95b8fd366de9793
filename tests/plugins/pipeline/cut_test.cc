// SPDX-License-Identifier: Apache-2.0

// How a chain is cut: the best there is, and who holds which parameter.
#include "apogee/plugins/pipeline/cut.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "apogee/core/rng.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::pipeline {
namespace cut_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PipelineShape ShapeOf(ScheduleKind kind, int stages, int chunks) {
  return {.kind = kind, .num_stages = stages, .num_chunks = chunks};
}
const PipelineShape kTwo = ShapeOf(ScheduleKind::k1F1B, 2, 1);

double Worst(const std::vector<double>& costs, const std::vector<int>& begin) {
  double worst = 0;
  for (size_t i = 0; i + 1 < begin.size(); ++i) {
    worst = std::max(worst,
                     std::accumulate(costs.begin() + begin[i], costs.begin() + begin[i + 1], 0.0));
  }
  return worst;
}

// The least of the most expensive part, over all cuts of the pieces from `first` on.
double BestWorst(const std::vector<double>& costs, size_t first, int parts) {
  if (parts == 1) return std::accumulate(costs.begin() + static_cast<int>(first), costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity(), cost = 0;
  for (size_t end = first + 1; end + static_cast<size_t>(parts) - 1 <= costs.size(); ++end) {
    cost += costs[end - 1];
    best = std::min(best, std::max(cost, BestWorst(costs, end, parts - 1)));
  }
  return best;
}

TEST(CutTest, BalancedCutIsTheBestThereIs) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const auto draw = [&](uint64_t i) { return Philox(MakeKey(trial, "costs"), i)[0]; };
    std::vector<double> costs(1 + draw(0) % 10);
    for (size_t i = 0; i < costs.size(); ++i) costs[i] = draw(i + 1) % 8;
    for (int parts = 1; parts <= static_cast<int>(costs.size()); ++parts) {
      const std::vector<int> begin = BalancedCut(costs, parts);
      ASSERT_EQ(begin.size(), static_cast<size_t>(parts) + 1);
      ASSERT_EQ(begin.front(), 0);
      ASSERT_EQ(begin.back(), static_cast<int>(costs.size()));
      for (size_t i = 0; i + 1 < begin.size(); ++i) ASSERT_LT(begin[i], begin[i + 1]);
      ASSERT_EQ(Worst(costs, begin), BestWorst(costs, 0, parts)) << "trial " << trial;
    }
  }
}

TEST(CutTest, OfEqualCutsTheEarlierPartsAreCheap) {
  const std::vector<double> equal(5, 1.0), late = {1, 1, 1, 1, 4}, early = {4, 1, 1, 1, 1};
  EXPECT_THAT(BalancedCut(equal, 2), ElementsAre(0, 2, 5));
  EXPECT_THAT(BalancedCut(equal, 3), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(BalancedCut(late, 3), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(BalancedCut(early, 3), ElementsAre(0, 1, 2, 5)) << "none is empty";
}

// Pieces of one layer each; `tied` is used by piece 1, too, and `spare` by none.
class Chained : public nn::Chain {
 public:
  explicit Chained(int pieces) : spare_(RegisterParameter("spare", {3}, nn::Init::Constant(0))) {
    for (int i = 0; i < pieces; ++i) {
      layers_.push_back(Register("layer" + std::to_string(i), std::make_shared<nn::Linear>(4, 4)));
    }
  }
  const nn::Linear& layer(size_t i) const { return *layers_[i]; }
  const nn::ParameterPtr& spare() const { return spare_; }
  std::vector<std::vector<size_t>> tied;  // by piece: layers whose weight it uses

 protected:
  std::vector<nn::Piece> MakePieces() override {
    std::vector<nn::Piece> pieces;
    for (const auto& layer : layers_) {
      pieces.push_back({.name = "piece", .modules = {layer.get()}, .forward = std::ref(*layer)});
    }
    for (size_t i = 0; i < tied.size(); ++i) {
      for (const size_t layer : tied[i]) pieces[i].tied.push_back(layers_[layer]->weight());
    }
    return pieces;
  }

 private:
  nn::ParameterPtr spare_;
  std::vector<std::shared_ptr<nn::Linear>> layers_;
};

TEST(CutTest, HoldersAreTheStagesThatUseAParameter) {
  nn::Gpt2 model({.vocab_size = 19, .n_positions = 4, .n_embd = 8, .n_layer = 6, .n_head = 2});
  const auto holders = [&](const PipelineShape& shape) {
    const Cut cut(model, shape, {});
    return cut.HoldersOf(*model.Parameters()[0]);
  };
  ASSERT_EQ(model.Parameters()[0]->name(), "transformer.wte.weight");
  EXPECT_THAT(holders(ShapeOf(ScheduleKind::k1F1B, 4, 1)), ElementsAre(0, 3));
  EXPECT_THAT(holders(ShapeOf(ScheduleKind::kInterleaved, 3, 2)), ElementsAre(0, 2));
  // The first stage has the last part, too.
  EXPECT_THAT(holders(ShapeOf(ScheduleKind::kZbv, 4, 2)), ElementsAre(0));

  Chained chain(6);
  chain.tied = {{}, {5}, {}, {0}};
  const Cut cut(chain, ShapeOf(ScheduleKind::k1F1B, 3, 1), {});
  EXPECT_THAT(cut.begin(), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(cut.HoldersOf(*chain.layer(5).weight()), ElementsAre(0, 2)) << "ascending";
  EXPECT_THAT(cut.HoldersOf(*chain.layer(5).bias()), ElementsAre(2));
  EXPECT_THAT(cut.HoldersOf(*chain.layer(0).weight()), ElementsAre(0, 1));
  EXPECT_THAT(cut.HoldersOf(*chain.layer(2).weight()), ElementsAre(1));
  EXPECT_THAT(cut.HoldersOf(*chain.spare()), ElementsAre(0));
  ASSERT_EQ(cut.Pieces(1).size(), 2u);
  EXPECT_EQ(cut.Pieces(1)[0].modules[0], &chain.layer(2));
}

TEST(CutTest, DeclaredGivenAndCountedCuts) {
  nn::Mlp model({.sizes = {8, 8, 8, 8, 2, 2}});  // 72, 72, 72, 18 and 6 elements
  EXPECT_THAT(Cut(model, kTwo, {}).begin(), ElementsAre(0, 2, 5)) << "parameters' elements";
  EXPECT_THAT(Cut(model, kTwo, {.piece_costs = {9, 1, 1, 1, 1}}).begin(), ElementsAre(0, 1, 5));
  EXPECT_THAT(Cut(model, kTwo, {.pieces_per_part = {4, 1}}).begin(), ElementsAre(0, 4, 5));
}

TEST(CutTest, ProblemsHaveTheNumbers) {
  nn::Mlp model({.sizes = {4, 4, 4, 4}});
  EXPECT_THAT(CutProblems(model, kTwo, {.piece_costs = {1, 0, 2}, .pieces_per_part = {1, 2}}),
              IsEmpty());
  EXPECT_THAT(CutProblems(model, ShapeOf(ScheduleKind::kInterleaved, 2, 3), {}),
              ElementsAre("the model has 3 pieces, which cannot be cut into 6 parts (pp_size 2 x "
                          "num_model_chunks 3)"));
  EXPECT_THAT(CutProblems(model, kTwo, {.piece_costs = {1, 2}}),
              ElementsAre("piece_costs has 2 numbers, but the model has 3 pieces"));
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(CutProblems(model, kTwo, {.piece_costs = {1, bad, 1}}),
                ElementsAre("piece_costs must not be negative or NaN"));
  }
  const std::vector<std::vector<int>> wrong_counts = {{3}, {1, 1, 1}, {1, 1}, {4, -1}, {3, 0}};
  for (const std::vector<int>& wrong : wrong_counts) {
    const int sum = std::accumulate(wrong.begin(), wrong.end(), 0);
    EXPECT_THAT(
        CutProblems(model, kTwo, {.pieces_per_part = wrong}),
        ElementsAre("pieces_per_part has " + std::to_string(wrong.size()) +
                    " numbers with the sum " + std::to_string(sum) +
                    ", and must have 2 positive ones with the sum 3, the pieces of the model"));
  }
  EXPECT_EQ(CutProblems(model, ShapeOf(ScheduleKind::k1F1B, 4, 1),
                        {.piece_costs = {-1}, .pieces_per_part = {1}})
                .size(),
            4u)
      << "all of them";
  nn::Linear plain(4, 4);
  EXPECT_THAT(CutProblems(plain, kTwo, {}),
              ElementsAre(AllOf(HasSubstr("is not an nn::Chain"), HasSubstr("nn/chain.h"))));
}

TEST(CutTest, CostsAreMeasuredAndLeaveNoTrace) {
  nn::Gpt2 model({.vocab_size = 19,
                  .n_positions = 64,
                  .n_embd = 64,
                  .n_layer = 2,
                  .n_head = 2,
                  .dropout = 0.5});
  model.Initialize(CpuContext(), {.seed = 1});
  const uint64_t stream = model.generator().next_stream();
  const std::vector<double> costs =
      MeasurePieceCosts(model, Tensor::Full({4, 64}, DType::kI64, 3, CpuContext()));
  ASSERT_EQ(costs.size(), 4u);
  EXPECT_GT(costs[1], costs[0]) << "looking up rows takes less than a block";
  EXPECT_GT(costs[2], costs[3]) << "and so does a head of 19 words";
  EXPECT_EQ(model.generator().next_stream(), stream) << "no masks have been drawn";
}

TEST(CutTest, MeasuringCostsLeavesRunningAverages) {
  nn::Sequential model({std::make_shared<nn::BatchNorm>(2)});
  model.Initialize(CpuContext(), {.seed = 1});
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 5}, {2, 2}, CpuContext());
  MeasurePieceCosts(model, x);
  EXPECT_EQ(model.Buffers()[0]->data().ToVector<float>(), std::vector<float>(2, 0));
  EXPECT_EQ(model.Buffers()[1]->data().ToVector<float>(), std::vector<float>(2, 1));
}

}  // namespace cut_test
}  // namespace apogee::pipeline
