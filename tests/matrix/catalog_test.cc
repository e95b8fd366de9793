// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/catalog.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apogee/matrix/matrix.h"
#include "apogee/matrix/models/tiny_model.h"
#include "apogee/matrix/sabotage.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/heavy_ball.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::matrix {
namespace catalog_test {

// An Mlp, as a user would let the matrix train it.
class OwnWorkload : public TinyWorkload {
 public:
  OwnWorkload() : TinyWorkload(TinyKind::kGpt2) {}
  std::unique_ptr<nn::Module> MakeModel() const override {
    return std::make_unique<nn::Mlp>(nn::MlpConfig{.sizes = {4, 6, 3}});
  }
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override {
    std::vector<double> inputs;
    std::vector<int64_t> targets;
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      for (int d = 0; d < 4; ++d) {
        inputs.push_back(std::sin(static_cast<double>(1 + range.step + 7 * i + 3 * d)));
      }
      targets.push_back((i + range.step) % 3);
    }
    return {Tensor::FromVector<double>(inputs, {range.count, 4}, context),
            Tensor::FromVector<int64_t>(targets, {range.count}, context)};
  }
};

TEST(CatalogTest, OwnOptimizersPluginsAndModelsAreComparedToo) {
  Catalog catalog;
  catalog.optimizers.Add<HeavyBall>("heavy_ball", HeavyBallOptions{});
  catalog.workloads.Add("own_mlp", std::make_shared<OwnWorkload>());
  catalog.plugins.push_back(
      {.name = "own_ddp",
       .worlds = {2, 3},
       .precisions = {"f64"},
       .main = true,
       .make = [](const comm::World& world, const PluginSettings& settings) -> MadePlugin {
         return std::make_unique<DdpPlugin>(world.group(), settings.training);
       },
       .workloads = {"fed", "own_mlp"}});
  const auto run = [&](const std::string& cells, Sabotage sabotage = Sabotage::kNone) {
    std::ostringstream out;
    std::vector<CellReport> reports =
        RunMatrix({.only = cells, .sabotage = sabotage, .catalog = &catalog}, out);
    return std::pair(std::move(reports), out.str());
  };
  for (const char* cell :
       {"[h]eavy_ball/ddp/world2/f64/acc1/fed", "[h]eavy_ball/zero2/world4/f64/acc3/clip/gpt2",
        "[h]eavy_ball/own_ddp/world3/f64/acc1/fed", "[a]damw/own_ddp/world2/f64/acc1/*own_mlp"}) {
    const auto [reports, out] = run(cell);
    ASSERT_GE(reports.size(), 1u) << cell;
    EXPECT_EQ(reports[0].verdict, Verdict::kPass) << out;
  }
  for (const char* cell :
       {"[h]eavy_ball/zero2/world2/f64/acc1/fed", "[a]damw/own_ddp/world2/f64/acc1/*own_mlp"}) {
    const auto [reports, out] = run(cell, Sabotage::kDropCollective);
    ASSERT_GE(reports.size(), 1u) << cell;
    EXPECT_EQ(reports[0].verdict, Verdict::kFail) << out;
  }
  EXPECT_TRUE(ChooseCells({.only = "heavy_ball"}).empty());
  EXPECT_TRUE(ChooseCells({.only = "own_ddp"}).empty());
}

TEST(ChooseCellsTest, ShardsTogetherHaveEveryCellOnce) {
  const MatrixOptions all{.only = "[a-b]*/world2/f64/*", .sample = 400};
  std::multiset<std::string> want, got;
  for (const Cell& cell : ChooseCells(all)) want.insert(cell.name());
  ASSERT_GE(want.size(), 4u);
  for (int64_t shard = 1; shard <= 3; ++shard) {
    MatrixOptions options = all;
    options.shard = shard;
    options.num_shards = 3;
    const std::vector<Cell> cells = ChooseCells(options);
    EXPECT_LE(cells.size(), want.size() / 3 + 1);
    for (const Cell& cell : cells) got.insert(cell.name());
  }
  EXPECT_EQ(got, want);
  for (const int64_t shard : {0, 4}) {
    EXPECT_EQ(testing::MessageOf([&] { ChooseCells({.shard = shard, .num_shards = 3}); }),
              "matrix: there is no shard " + std::to_string(shard) + " of 3; use 1 to 3");
  }
}

}  // namespace catalog_test
}  // namespace apogee::matrix
