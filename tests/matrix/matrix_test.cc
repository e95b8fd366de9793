// SPDX-License-Identifier: Apache-2.0

// The matrix sees what it must see: each sabotage turns the cells concerned red and leaves the
// others green; the sample covers all pairs; reports are what they say.
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

namespace apogee::matrix {
namespace matrix_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Cell FindCell(const std::string& name) {
  for (const Cell& cell : AllCells()) {
    if (cell.name() == name) return cell;
  }
  Throw("no cell is named ", name);
}

CellReport Run(const std::string& name, Sabotage sabotage) {
  static ReferenceCache references;
  return RunCell(FindCell(name), sabotage, references);
}

void ExpectGreen(const std::string& name, Sabotage sabotage = Sabotage::kNone) {
  const CellReport report = Run(name, sabotage);
  EXPECT_EQ(report.verdict, Verdict::kPass) << report.Line();
}

// Red under sabotage, for the reason that its line gives; green without it.
void ExpectRed(const std::string& name, Sabotage sabotage, const std::string& reason) {
  ExpectGreen(name);
  const CellReport report = Run(name, sabotage);
  EXPECT_EQ(report.verdict, Verdict::kFail) << report.Line();
  EXPECT_THAT(report.Line(), HasSubstr(reason));
}

TEST(SabotageTest, DroppedCollectivesShowOnSeveralRanksOnly) {
  const std::string reason = "ranks end with different values of";
  ExpectRed("adamw/ddp/world2/f32/acc1/fed", Sabotage::kDropCollective, reason);
  ExpectRed("sgd/ddp/world3/f64/acc3ns/clip/gpt2", Sabotage::kDropCollective, reason);
  ExpectRed("lamb/ddp/world4/bf16/acc1/clip/llama", Sabotage::kDropCollective, reason);
  // Every shard has one owner, so ranks agree, on something wrong.
  ExpectRed("adamw/zero1/world3/f32/acc3/fed", Sabotage::kDropCollective, "error ");
  ExpectRed("adamw/zero2/world2/f64/acc1/clip/llama", Sabotage::kDropCollective, "error ");
  ExpectGreen("adamw/ddp/world1/f32/acc1/fed", Sabotage::kDropCollective);
  ExpectGreen("adamw/zero2/world1/f32/acc1/fed", Sabotage::kDropCollective);
}

TEST(SabotageTest, ZerosForAbsentGradientsMoveWhatMustNotMove) {
  // Weight decay moves a parameter that never has a gradient: its error is infinite.
  ExpectRed("adamw/ddp/world1/f32/acc1/fed", Sabotage::kNoneAsZero, "error inf > 1e-05 (never)");
  ExpectRed("adamw/ddp/world3/f64/acc3ns/clip/gpt2", Sabotage::kNoneAsZero, "(extra)");
  ExpectRed("adamw/zero2/world3/f32/acc3/fed", Sabotage::kNoneAsZero, "(never)");
  // This preset counts absent gradients as zeros by itself.
  ExpectGreen("scaled_adam_icefall/ddp/world2/f32/acc1/fed", Sabotage::kNoneAsZero);
}

TEST(SabotageTest, StepsThatDoNotHappenShowEverywhere) {
  ExpectRed("sgd/single/world1/f32/acc1/fed", Sabotage::kNoUpdate, "error 1 > 1e-05");
  ExpectRed("lion/ddp/world2/f64/acc3/fed", Sabotage::kNoUpdate, "error 1 > 1e-09");
  ExpectRed("adafactor/ddp/world2/bf16/acc1/clip/gpt2", Sabotage::kNoUpdate, "error 1 >");
  ExpectRed("came/zero2/world3/f32/acc3ns/fed", Sabotage::kNoUpdate, "error 1 > 1e-05");
  ExpectRed("adam/zero1_late/world4/f32/acc1/clip/llama", Sabotage::kNoUpdate, "error 1 >");
  // It has updated inside backward.
  ExpectRed("lomo/ddp/world1/f32/acc1/fed", Sabotage::kNoUpdate, "error 1 > 1e-05");
}

TEST(SabotageTest, LocalStatisticsShowWhereTensorsAreShardedAndStatisticsUsed) {
  for (const std::string optimizer :
       {"lamb", "lars", "adafactor", "came", "scaled_adam", "galore_adamw", "adalomo"}) {
    const std::string reason =
        optimizer == "galore_adamw" ? "0 ranks computed its basis" : "error ";
    ExpectRed(optimizer + "/zero2/world2/f32/acc1/fed", Sabotage::kLocalStats, reason);
    ExpectGreen(optimizer + "/zero2/world1/f32/acc1/fed", Sabotage::kLocalStats);
  }
  ExpectRed("adafactor/zero1/world3/f64/acc3/gpt2", Sabotage::kLocalStats, "error ");
  // Only the norm that is clipped is a statistic of AdamW's.
  ExpectGreen("adamw/zero2/world3/f32/acc3/fed", Sabotage::kLocalStats);
  ExpectRed("adamw/zero2/world3/f32/acc3/clip/fed", Sabotage::kLocalStats, "error ");
  // Whole gradients on every rank.
  ExpectGreen("lamb/ddp/world2/f32/acc1/clip/fed", Sabotage::kLocalStats);
  ExpectGreen("adafactor/ddp/world3/f64/acc1/fed", Sabotage::kLocalStats);
}

TEST(SabotageTest, HybridRunsNeedEverySum) {
  const std::string differ = "ranks end with different values of";
  // Over data-parallel ranks: gradients.
  ExpectRed("adamw/hybrid_tp2_zero0/world4/f32/acc1/fed", Sabotage::kDropCollective, differ);
  ExpectRed("adamw/hybrid_tp2_zero2/world8/f32/acc1/fed", Sabotage::kDropCollective, "error ");
  // Over ranks that share layers: activations, statistics.
  ExpectRed("sgd/hybrid_tp4_zero0/world4/f64/acc1/clip/llama_untied", Sabotage::kDropCollective,
            "their gradients of it differ");
  ExpectRed("sgd/hybrid_tp2_zero1/world2/bf16/acc3/clip/gpt2_tied", Sabotage::kDropCollective,
            "their gradients of it differ");
  ExpectRed("lamb/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kDropCollective, "error ");
  // Nothing is summed: gradients are given, and there is one data-parallel rank.
  ExpectGreen("adamw/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kDropCollective);
}

TEST(SabotageTest, ExpertsNeedTheirMeansNormsLossesAndRouters) {
  const auto cell = [](const std::string& plugin, int world, const std::string& workload,
                       const std::string& optimizer = "sgd") {
    for (const Cell& cell : AllCells(LibraryCatalog())) {
      const bool fits = cell.optimizer == optimizer && cell.plugin == plugin &&
                        cell.world == world && cell.workload == workload && !cell.ignored;
      if (fits) return cell.name();
    }
    return std::string();
  };
  for (const char* plugin :
       {"hybrid_ep2_zero0", "hybrid_ep2_zero1", "hybrid_ep2_zero2", "gemini_ep2"}) {
    const std::string moe = cell(plugin, 2, "moe"), aux = cell(plugin, 2, "moe_aux");
    ExpectGreen(moe);
    ExpectRed(moe, Sabotage::kExpertMean, "error ");
    ExpectRed(moe, Sabotage::kRouterGradientLost, "error ");
    ExpectGreen(aux);
    ExpectRed(aux, Sabotage::kAuxLossPerRank, "error ");
  }
  for (const char* plugin :
       {"hybrid_ep2_pp2_zero1", "hybrid_ep2_sp2_all_to_all_zero1", "gemini_ep2_sp2_all_to_all"}) {
    const std::string aux = cell(plugin, 4, "moe_aux");
    ExpectGreen(aux);
    ExpectRed(aux, Sabotage::kAuxLossPerRank, "error ");
  }
  ExpectRed("sgd/hybrid_ep2_zero0/world2/f64/acc1/clip/moe", Sabotage::kNormWithoutEp,
            "ranks end with different values of");
  // Experts' gradients are reduced while parts of sequences travel over the same ranks.
  ExpectGreen(cell("gemini_ep2_sp2_all_to_all", 4, "moe_rare"));
  // AdaLomo updates experts inside backward, with statistics of their own.
  ExpectGreen(cell("gemini_ep2", 4, "moe_aux", "adalomo"));
}

TEST(SabotageTest, AdaptersNeedTheSumsOfTheirFactorsAndAllRanks) {
  const auto cell = [](const std::string& plugin, const std::string& workload) {
    for (const Cell& cell : AllCells(LibraryCatalog())) {
      const bool fits = cell.optimizer == "adamw" && cell.plugin == plugin &&
                        cell.workload == workload && cell.precision != "bf16";
      if (fits) return cell.name();
    }
    return std::string();
  };
  ExpectGreen(cell("hybrid_tp2_zero1", "lora"));
  ExpectRed(cell("hybrid_tp2_zero1", "lora"), Sabotage::kLoraFactorNotSummed, "");
  ExpectRed(cell("hybrid_tp2_zero1", "lora"), Sabotage::kAdapterOfRankZero, "error ");
  ExpectRed(cell("gemini", "lora_gpt2"), Sabotage::kAdapterOfRankZero, "error ");
  ExpectRed(cell("zero2", "lora"), Sabotage::kAdapterOfRankZero, "error ");
}

TEST(SabotageTest, HybridRunsNeedStatisticsOfWholeTensors) {
  for (const std::string optimizer : {"lamb", "lars", "adafactor", "came", "adalomo"}) {
    ExpectRed(optimizer + "/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kLocalStats, "error ");
    ExpectRed(optimizer + "/hybrid_tp4_zero2/world8/f32/acc1/fed", Sabotage::kLocalStats, "error ");
  }
  ExpectRed("galore_adamw/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kLocalStats,
            "0 ranks computed its basis");
  ExpectRed("came/hybrid_tp4_zero0/world4/f64/acc3ns/llama_untied", Sabotage::kLocalStats,
            "error ");
  // Clipped by norms of parts, ranks no longer agree on what all of them hold.
  ExpectRed("adamw/hybrid_tp2_zero0/world4/f32/acc3/clip/fed", Sabotage::kLocalStats,
            "ranks end with different values of");
  ExpectGreen("adamw/hybrid_tp2_zero0/world4/f32/acc1/fed", Sabotage::kLocalStats);
  ExpectGreen("lamb/hybrid_tp1_zero0/world2/f32/acc1/fed", Sabotage::kLocalStats);
}

TEST(SabotageTest, HybridRunsKeepAbsentGradientsAndUpdate) {
  ExpectRed("adamw/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kNoneAsZero,
            "error inf > 1e-05 (never)");
  ExpectRed("adamw/hybrid_tp4_zero1/world8/f32/acc1/fed", Sabotage::kNoneAsZero, "(never)");
  ExpectRed("lion/hybrid_tp2_zero2/world6/f32/acc1/fed", Sabotage::kNoUpdate, "error 1 > 1e-05");
  ExpectRed("adamw/hybrid_tp2_zero0/world2/bf16/acc3/clip/llama_untied", Sabotage::kNoUpdate,
            "error 1 >");
  ExpectRed("adamw/hybrid_tp4_zero2/world4/f64/acc3/clip/gpt2_tied", Sabotage::kNoUpdate,
            "error 1 > 1e-09");
}

TEST(SabotageTest, ShardedPartsNeedAllOfThat) {
  ExpectRed("adamw/gemini_tp2/world4/f32/acc1/fed", Sabotage::kDropCollective, "error ");
  ExpectRed("lamb/gemini_tp2/world2/f32/acc1/fed", Sabotage::kLocalStats, "error ");
  ExpectRed("adafactor/gemini_tp2_auto/world4/f32/acc1/fed", Sabotage::kLocalStats, "error ");
  ExpectGreen("adamw/gemini_tp2/world4/f32/acc1/fed", Sabotage::kLocalStats);
  ExpectRed("lamb/gemini_tp2/world6/f32/acc1/fed", Sabotage::kNoneAsZero, "(never)");
  ExpectRed("adafactor/gemini_tp2_auto/world4/f32/acc1/fed", Sabotage::kNoUpdate, "error 1 >");
}

TEST(SabotageTest, StagesNeedAllOfThat) {
  // The sum over the stages that share a parameter; over data-parallel ranks; over parts.
  ExpectRed("sgd/hybrid_pp2_1f1b_zero0/world2/f32/acc1/fed", Sabotage::kDropCollective, "(tied)");
  ExpectRed("adamw/hybrid_pp2_zbv_zero2/world4/f32/acc1/fed", Sabotage::kDropCollective, "error ");
  ExpectRed("lamb/hybrid_pp2_tp2_1f1b_zero0/world4/f32/acc1/fed", Sabotage::kLocalStats, "error ");
  ExpectRed("came/hybrid_pp2_interleaved_zero1/world4/f32/acc1/fed", Sabotage::kLocalStats,
            "error ");
  ExpectRed("adamw/hybrid_pp4_interleaved_zero2/world4/f32/acc1/fed", Sabotage::kNoneAsZero,
            "(never)");
  ExpectRed("lion/hybrid_pp2_zbv_zero1/world4/f32/acc1/fed", Sabotage::kNoUpdate, "error 1 >");
}

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
