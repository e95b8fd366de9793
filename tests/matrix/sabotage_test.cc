// SPDX-License-Identifier: Apache-2.0

// Each sabotage turns the cells of the matrix that it concerns red and leaves the others green.
#include "apogee/matrix/sabotage.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/matrix/reference.h"
#include "apogee/tests/matrix/find_cell.h"

namespace apogee::matrix {
namespace sabotage_test {

using ::testing::HasSubstr;

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

TEST(SabotageTest, MatricesAreWholeAndMoveOncePerStep) {
  for (const std::string optimizer : {"muon", "normuon", "dion", "soap"}) {
    ExpectRed(optimizer + "/zero2/world2/f32/acc1/fed", Sabotage::kLocalGram, "error ");
    ExpectGreen(optimizer + "/zero2/world1/f32/acc1/fed", Sabotage::kLocalGram);
    ExpectRed(optimizer + "/hybrid_tp2_zero0/world2/f32/acc1/fed", Sabotage::kLocalGram,
              "ranks end with different values of");
    ExpectRed(optimizer + "/zero1/world3/f64/acc3/gpt2", Sabotage::kPerMicroBatch, "error ");
    ExpectRed(optimizer + "/ddp/world2/f32/acc1/fed", Sabotage::kUpdateClipped, "error ");
  }
  ExpectRed("schedule_free_adamw/zero2/world3/f32/acc3/fed", Sabotage::kPerMicroBatch, "error ");
  ExpectRed("schedule_free_sgd/zero1/world2/f32/acc1/fed", Sabotage::kUpdateClipped, "error ");
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
    for (const Cell& cell : Cells()) {
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
    for (const Cell& cell : Cells()) {
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

}  // namespace sabotage_test
}  // namespace apogee::matrix
