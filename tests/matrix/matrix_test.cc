// SPDX-License-Identifier: Apache-2.0

// Bounds of noise, searches that end, the sample that covers all pairs, reports. sabotage_test.cc
// shows that cells turn red.
#include "apogee/matrix/matrix.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apogee/matrix/plain_run.h"
#include "apogee/matrix/plugins.h"
#include "apogee/matrix/reference.h"
#include "apogee/matrix/report.h"
#include "apogee/matrix/sabotage.h"
#include "apogee/optim/registry.h"
#include "apogee/tests/matrix/find_cell.h"

namespace apogee::matrix {
namespace matrix_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// For what rounding seldom does; the largest bound leaves an update that did not happen red.
TEST(MatrixTest, MoreOrdersOfTheOneRankRunOnlyWidenBoundsOfNoise) {
  ReferenceCache references;
  const auto widen = [&](const char* cell, int most) {
    int num_runs = 0;
    const bool taken = references.LookFurther(FindCell(cell),
                                              [&](const Reference&) { return ++num_runs == most; });
    EXPECT_EQ(taken, num_runs == most);
    return num_runs;
  };
  const char* const noisy =
      "galore_adamw/hybrid_sp2_all_to_all_tp2_zero1/world4/bf16/acc1/clip/gpt2_long";
  const auto before = references.Get(FindCell(noisy)).bounds;
  EXPECT_EQ(widen(noisy, 30), 30);
  const auto after = references.Get(FindCell(noisy)).bounds;
  for (const auto& [name, bound] : after) {
    EXPECT_GE(bound, before.at(name)) << name;
    EXPECT_LE(bound, 0.9) << name;
  }
  EXPECT_EQ(references.Get(FindCell(noisy)).num_further_orders, 30);
  EXPECT_EQ(widen("adamw/ddp/world1/f32/acc1/fed", 1), 0);
  EXPECT_EQ(widen("adamw/zero2/world2/f64/acc1/clip/llama", 1), 0);
  // SOAP's bounds are those of its eigenvectors; no order of sums widens them further.
  const char* const eigenvectors = "soap/single/world1/f64/acc3/gpt2";
  EXPECT_GE(references.Get(FindCell(eigenvectors)).bounds.begin()->second, 1e-9);
  EXPECT_EQ(widen(eigenvectors, 1), 0);
}

// Red cells must not cost more than green ones: what no rounding does is not searched for, and a
// search ends.
TEST(MatrixTest, AMatrixThatFailsFailsFast) {
  ReferenceCache references({.seconds_per_reference = 0.3, .seconds_in_all = 0.5});
  const auto never = [](const Reference&) { return false; };
  const auto search = [&](const char* name) {
    const Cell cell = FindCell(name);
    EXPECT_FALSE(references.LookFurther(cell, never));
    return references.Get(cell).num_further_orders;
  };
  const char* const near = "adamw/zero2_late/world2/bf16/acc1/clip/gpt2";
  const int most = search(near);
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 300);
  EXPECT_EQ(search(near), most) << "the same reference is not searched twice";
  EXPECT_LT(search("lars/zero2/world4/bf16/acc3ns/gpt2"), 300);
  EXPECT_EQ(search("sgd/zero2/world2/bf16/acc1/clip/llama"), 0) << "all of the time is used up";

  ReferenceCache fresh;
  const Cell far = FindCell("lamb/zero2/world3/f32/acc1/llama");
  const CellReport report = RunCell(far, Sabotage::kLocalStats, fresh);
  EXPECT_EQ(report.verdict, Verdict::kFail) << report.Line();
  EXPECT_LT(report.error, kLargestBound);
  EXPECT_GT(report.error, kSearchFactor * report.bound);
  EXPECT_EQ(fresh.Get(far).num_further_orders, 0);
}

TEST(MatrixTest, HybridCellsMeetEveryLayoutWithEveryOptimizer) {
  std::set<std::string> layouts, by_workload, by_precision, sequences, pipelines, experts, adapters;
  for (const Cell& cell : AllCells()) {
    const PluginVariant& plugin = LibraryCatalog().FindPlugin(cell.plugin);
    EXPECT_EQ(cell.world % plugin.ranks_per_sample(), 0) << cell.name();
    const std::string layout =
        cell.optimizer + "/" + cell.plugin + "/" + std::to_string(cell.world);
    if (cell.workload.starts_with("lora")) {
      adapters.insert(layout + "/" + cell.workload);
      continue;
    }
    if (!plugin.is_hybrid || cell.workload.starts_with("hf_")) continue;
    if (cell.workload.ends_with("_chunked")) continue;
    if (plugin.ep > 1) {
      experts.insert(layout + "/" + cell.workload);
      continue;
    }
    if (plugin.pp > 1) {
      pipelines.insert(layout);
      continue;
    }
    if (cell.plugin.find("_sp") != std::string::npos) {
      sequences.insert(layout);
      continue;
    }
    layouts.insert(layout);
    by_workload.insert(layout + "/" + cell.workload);
    by_precision.insert(layout + "/" + cell.precision);
  }
  size_t num_layouts = 0, num_auto = 0, num_sequences = 0, num_pipelines = 0;
  for (const std::string& name : optim::OptimizerNames()) {
    const bool sharded = !optim::TakesLocalGradients(name);
    num_layouts += (sharded ? 3 : 1) * (1 + 4 + 2);  // stages of ZeRO up to 2
    num_layouts += sharded ? (1 + 3) + (1 + 2) : 0;  // 3, static and auto
    num_auto += sharded ? 1 + 2 : 0;
    // Of each schedule and stage of ZeRO; products with modes of sequences, by turns.
    num_pipelines += sharded ? 3 * 3 * 6 + 3 * 7 : 3 * 6 + 7;
    num_sequences += sharded ? 6 + 5 + 6 : 3 * 2;  // per mode; without ZeRO
  }
  EXPECT_EQ(layouts.size(), num_layouts);
  EXPECT_EQ(pipelines.size(), num_pipelines);
  // lomo and adalomo have no stage 3 of split_gather.
  EXPECT_EQ(sequences.size(), num_sequences - 2);
  // gpt2 and llama, tied and not, and fed; also cnn, encoder, gru, moe and moe_idle, but not under
  // kAuto.
  EXPECT_EQ(by_workload.size(), num_layouts * 10 - num_auto * 5);
  size_t num_experts = 0;
  for (const PluginVariant& plugin : LibraryCatalog().plugins) {
    if (plugin.ep > 1) num_experts += plugin.worlds.size() * plugin.workloads.size();
  }
  const auto shards = [](const std::string& name) { return !optim::TakesLocalGradients(name); };
  // Adapters of two models on two bases each in 16 layouts; without ZeRO in 6. lomo and adalomo
  // lack one, as above.
  size_t num_adapters = 0;
  for (const std::string& name : optim::OptimizerNames()) num_adapters += shards(name) ? 64 : 24;
  EXPECT_EQ(adapters.size(), num_adapters - 8);
  EXPECT_EQ(experts.size(), num_experts * static_cast<size_t>(std::ranges::count_if(
                                              optim::OptimizerNames(), shards)));
  EXPECT_EQ(by_precision.size(), num_layouts * 4);
}

TEST(MatrixTest, RefusalsOfTheListAreCountedApart) {
  std::ostringstream out;
  const std::vector<CellReport> reports =
      RunMatrix({.only = "lomo/single/world1/f32/acc3*/fed"}, out);
  ASSERT_FALSE(reports.empty());
  for (const CellReport& report : reports) EXPECT_EQ(report.verdict, Verdict::kRefused);
  EXPECT_THAT(out.str(), StartsWith("refused lomo/single/world1/f32/acc3/fed: "));
  EXPECT_THAT(out.str(),
              EndsWith(std::to_string(reports.size()) + " refused\n0 passed, 0 failed\n"));
}

TEST(MatrixTest, JobsChangeNoReport) {
  const std::string cells = "*/ddp/world2/f32/acc1/fed";
  std::ostringstream out, out_of_jobs;
  const std::vector<CellReport> want = RunMatrix({.only = cells}, out);
  const std::vector<CellReport> got = RunMatrix({.only = cells, .jobs = 3}, out_of_jobs);
  ASSERT_EQ(got.size(), want.size());
  ASSERT_GT(want.size(), 3u);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].Line(), want[i].Line());
    EXPECT_THAT(out_of_jobs.str(), HasSubstr(want[i].Line() + "\n"));
  }
  EXPECT_THROW(RunMatrix({.only = cells, .jobs = 0}, out), Error);
}

TEST(MatrixTest, TheSampleHasEveryPair) {
  std::vector<Cell> all = AllCells();
  std::erase_if(all, [](const Cell& cell) { return cell.workload.starts_with("hf_"); });
  const std::vector<Cell> sample = PairwiseSample(all, 1000);
  EXPECT_LT(sample.size(), 1000u) << "the limit must not decide what is covered";
  EXPECT_EQ(NumPairs(sample), NumPairs(all));
  EXPECT_EQ(PairwiseSample(all, 10).size(), 10u);
  std::set<std::string> names, optimizers;
  for (const Cell& cell : all) {
    names.insert(cell.name());
    optimizers.insert(cell.optimizer);
  }
  EXPECT_EQ(names.size(), all.size());
  EXPECT_EQ(optimizers.size(), optim::OptimizerNames().size());
}

TEST(MatrixTest, Patterns) {
  EXPECT_TRUE(MatchesPattern("adamw/ddp/world2/f32/acc1/fed", ""));
  EXPECT_TRUE(MatchesPattern("adamw/ddp/world2/f32/acc1/fed", "world2"));
  EXPECT_TRUE(MatchesPattern("adamw/ddp/world2/f32/acc1/fed", "[a-b]*fed"));
  EXPECT_FALSE(MatchesPattern("adamw/ddp/world2/f32/acc1/fed", "[c-z]*"));
}

TEST(MatrixTest, Reports) {
  std::ostringstream out, json, markdown;
  const std::vector<CellReport> reports =
      RunMatrix({.only = "[a]damw/ddp/world2/f32/acc1/fed"}, out);
  ASSERT_EQ(reports.size(), 1u);
  // One all-reduce per bucket of 6000 bytes, one for presence and, of what the loss was made, an
  // all-gather.
  EXPECT_EQ(reports[0].collectives, 7);
  // Two moments in f32 for what has had a gradient: all but "never" [4, 4] and "frozen" [5, 6].
  EXPECT_EQ(reports[0].state_bytes, 8 * (reports[0].num_parameters - 16 - 30));
  EXPECT_THAT(out.str(), EndsWith("1 passed, 0 failed\n"));
  WriteJson(reports, json);
  const nlohmann::json root = nlohmann::json::parse(json.str());
  EXPECT_EQ(root["passed"], 1);
  EXPECT_EQ(root["cells"][0]["name"], "adamw/ddp/world2/f32/acc1/fed");
  EXPECT_EQ(root["cells"][0]["verdict"], "pass");
  WriteMarkdown(reports, markdown);
  EXPECT_THAT(markdown.str(), HasSubstr("| `adamw` | 1 passed |"));
}

}  // namespace matrix_test
}  // namespace apogee::matrix
