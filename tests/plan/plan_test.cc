// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace apogee::plan {
namespace plan_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

TrainingSetup Small() {
  TrainingSetup setup = ValueOrThrow(SetupOfConfig(
      R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 160,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 256})",
      "small"));
  setup.batch = 16;
  setup.tokens = 128;
  return setup;
}

const PlanRow& RowOf(const PlanReport& report, const std::string& name) {
  const auto found = std::ranges::find_if(
      report.rows, [&](const PlanRow& row) { return row.candidate.name == name; });
  APOGEE_CHECK(found != report.rows.end(), "no row ", name);
  return *found;
}

int64_t PeakOf(const PlanRow& row, MemoryCategory category) {
  return row.largest.memory.peak_bytes[static_cast<size_t>(category)];
}

// The numbers of the papers and of the folders' own files.
TEST(PlanTest, KnownModelsHaveTheirNumberOfParameters) {
  const std::map<std::string, int64_t> numbers = {
      {"gpt2", 124439808},           {"gpt2-medium", 354823168},    {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},       {"llama2-7b", 6738415616},     {"llama2-13b", 13015864320},
      {"llama2-70b", 68976648192},   {"llama3-8b", 8030261248},     {"llama3-70b", 70553706496},
      {"llama3-405b", 405853388800}, {"mixtral-8x7b", 46702792704}, {"qwen3-30b-a3b", 30532122624}};
  for (const std::string& name : KnownModels()) {
    EXPECT_EQ(ValueOrThrow(SetupOf(name)).make_model(false)->num_parameters(), numbers.at(name))
        << name;
  }
  EXPECT_EQ(KnownModels().size(), numbers.size());
}

TEST(PlanTest, RowsAreTheRealRuns) {
  TrainingSetup setup = Small();
  setup.accumulate = 2;
  const PlanReport report = ValueOrThrow(Plan(setup, {.num_ranks = 4, .check = true}));
  std::set<std::string> names;
  for (const PlanRow& row : report.rows) {
    SCOPED_TRACE(row.candidate.name);
    names.insert(row.candidate.name);
    EXPECT_EQ(row.refusal, "");
    ASSERT_EQ(row.measured.size(), static_cast<size_t>(row.candidate.pp));
    for (size_t r = 0; r < row.measured.size(); ++r) {
      EXPECT_EQ(row.ranks[r].rank, row.measured[r].rank);
      EXPECT_EQ(row.ranks[r].memory.live_bytes, row.measured[r].memory.live_bytes);
      EXPECT_NEAR(static_cast<double>(row.ranks[r].memory.peak_reserved_bytes) /
                      static_cast<double>(row.measured[r].memory.peak_reserved_bytes),
                  1, 0.02);
    }
  }
  EXPECT_THAT(names,
              ::testing::IsSupersetOf({"ddp", "zero1", "zero2", "gemini", "hybrid dp2 tp2 zero1",
                                       "hybrid pp2 tp2", "hybrid pp4"}));
}

// AdamW in f32: two moments of 4 bytes per parameter, and a rank's share of them under ZeRO.
TEST(PlanTest, StatesAreCutAsThePluginsSay) {
  const PlanReport report = ValueOrThrow(Plan(Small(), {.num_ranks = 4}));
  const int64_t parameters = report.num_parameters;
  EXPECT_EQ(PeakOf(RowOf(report, "ddp"), MemoryCategory::kOptimizerState), 8 * parameters);
  const int64_t cut = PeakOf(RowOf(report, "zero1"), MemoryCategory::kOptimizerState);
  EXPECT_GE(cut, 2 * parameters);
  EXPECT_LE(cut, 2 * parameters + 8 * 1024);
  // A ring of all-reduces sends every gradient once more than a reduce-scatter does.
  EXPECT_GE(RowOf(report, "ddp").bytes, 4 * parameters);
  EXPECT_LT(RowOf(report, "ddp").bytes, 4 * parameters + 4096);
}

TEST(PlanTest, TheSmallestChangeThatFits) {
  TrainingSetup setup = Small();
  const PlanReport loose = ValueOrThrow(Plan(setup, {.num_ranks = 2, .device_bytes = 1 << 30}));
  EXPECT_TRUE(loose.fits());
  EXPECT_EQ(loose.change, "");
  int64_t least = INT64_MAX;
  for (const PlanRow& row : loose.rows) least = std::min(least, row.peak_bytes());
  const PlanReport tight = ValueOrThrow(Plan(setup, {.num_ranks = 2, .device_bytes = least - 1}));
  EXPECT_FALSE(tight.fits());
  EXPECT_EQ(tight.change, "recompute");
  EXPECT_LT(tight.changed_row.peak_bytes(), least);
  EXPECT_THAT(TableOf(tight), HasSubstr("It fits with recompute"));
  const PlanReport none = ValueOrThrow(Plan(setup, {.num_ranks = 2, .device_bytes = 1000}));
  EXPECT_EQ(none.change, "");
  EXPECT_THAT(TableOf(none), HasSubstr("Nothing fits, not even"));
}

// States and gradients are those of the factors; a real run needs as much, also on a base in nf4.
TEST(PlanTest, AnAdapterIsPricedAsItTrains) {
  int64_t parameter_bytes = 0;
  for (const bool quantize : {false, true}) {
    TrainingSetup setup = Small();
    setup.lora = nn::LoraOptions{.rank = 2, .alpha = 4};
    if (quantize) setup.lora->quantize = nn::QuantizeOptions{};
    int64_t trained = 0;
    for (const auto& [name, shape] : nn::PlannedTensors(*setup.make_model(false), *setup.lora)) {
      trained += shape.numel();
    }
    const PlanReport report = ValueOrThrow(Plan(setup, {.num_ranks = 2, .check = true}));
    const PlanRow& ddp = RowOf(report, "ddp");
    EXPECT_EQ(PeakOf(ddp, MemoryCategory::kOptimizerState), 8 * trained);
    EXPECT_LT(PeakOf(ddp, MemoryCategory::kGradient), 8 * trained + (64 << 10));
    for (const PlanRow& row : report.rows) {
      ASSERT_EQ(row.refusal, "") << row.candidate.name;
      for (size_t r = 0; r < row.measured.size(); ++r) {
        EXPECT_EQ(row.ranks[r].memory.live_bytes, row.measured[r].memory.live_bytes)
            << row.candidate.name;
      }
    }
    const int64_t bytes = PeakOf(ddp, MemoryCategory::kParameter);
    if (quantize) {
      EXPECT_LT(bytes, parameter_bytes);
    } else {
      parameter_bytes = bytes;
    }
    EXPECT_THAT(TableOf(report), HasSubstr(quantize ? "an adapter of rank 2 on weights in nf4"
                                                    : "an adapter of rank 2\n"));
    EXPECT_THAT(
        CodeOf(ddp.candidate, setup),
        HasSubstr(quantize ? "booster.enable_lora(model, {.rank = 2, .alpha = 4, .quantize = "
                             "{{.kind = BlockCodeKind::kNf4}}});"
                           : "booster.enable_lora(model, {.rank = 2, .alpha = 4});"));
  }
}

TEST(PlanTest, RowsThatDoNotDivideSayWhy) {
  TrainingSetup setup = Small();
  setup.batch = 6;
  const PlanReport report = ValueOrThrow(Plan(setup, {.num_ranks = 4}));
  EXPECT_EQ(RowOf(report, "ddp").refusal, "batch 6 is not divisible by 4 data-parallel ranks");
  EXPECT_EQ(RowOf(report, "hybrid dp2 tp2 zero1").refusal, "");
  EXPECT_THAT(TableOf(report), HasSubstr("Left out:\nddp: batch 6"));
}

TEST(PlanTest, TheCodeNamesTheOptions) {
  TrainingSetup setup = Small();
  setup.training = {.precision = Precision::kBf16, .max_norm = 1};
  const std::vector<Candidate> candidates = Candidates(setup, 4);
  std::string code;
  for (const Candidate& candidate : candidates) code += CodeOf(candidate, setup);
  EXPECT_THAT(code,
              AllOf(HasSubstr("const TrainingOptions training{.precision = Precision::kBf16, "
                              ".max_norm = 1};\nDdpPlugin plugin(world.group(), training);"),
                    HasSubstr("LowLevelZeroPlugin plugin(world.group(), training, {.stage = 2});"),
                    HasSubstr("HybridParallelPlugin plugin(world, training, {.num_microbatches = "
                              "8, .pp_size = 2, .stage = 1});")));
}

// The experts of a rank are fewer; the rest is as without expert parallelism.
TEST(PlanTest, ExpertsOverRanks) {
  TrainingSetup setup = ValueOrThrow(SetupOfConfig(
      R"({"model_type": "mixtral", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 160,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "num_local_experts": 8, "max_position_embeddings": 256})",
      "mixtral"));
  setup.batch = 16;
  setup.tokens = 128;
  const PlanReport report = ValueOrThrow(Plan(setup, {.num_ranks = 4}));
  constexpr int64_t kExperts = 2 * 8 * 3 * 64 * 160 * 4;  // bytes of their values
  const int64_t held = report.num_parameters * 4 - kExperts * 3 / 4;
  const PlanRow& experts = RowOf(report, "moe_hybrid dp4 ep4 zero1");
  // For a moment the values, the chunks that they move to, and one more value.
  EXPECT_GE(PeakOf(experts, MemoryCategory::kParameter), held);
  EXPECT_LE(PeakOf(experts, MemoryCategory::kParameter), 2 * held + 1000 * 64 * 4);
  EXPECT_LT(PeakOf(experts, MemoryCategory::kGradient),
            PeakOf(RowOf(report, "zero1"), MemoryCategory::kGradient) - kExperts / 2);
  const PlanRow& cut = RowOf(report, "moe_hybrid dp2 ep2 tp2 zero1");
  EXPECT_EQ(cut.refusal, "");
  // Of 4 samples' rows, two per token, 3/4 leave a rank: to the experts and back, and the same in
  // backward; and the counts of all experts. In two layers.
  constexpr int64_t kRows = 4 * 128 * 2 * 3 / 4 * 64 * 4;
  EXPECT_EQ(experts.largest.step.traffic.bytes(comm::CollectiveKind::kAllToAll),
            2 * (4 * kRows + 8 * 8));
  EXPECT_THAT(
      CodeOf(experts.candidate, setup),
      HasSubstr("MoeHybridParallelPlugin plugin(world, training, {.ep_size = 4, .stage = 1});"));
}

TEST(PlanTest, Json) {
  const PlanReport report = ValueOrThrow(Plan(Small(), {.num_ranks = 2, .device_bytes = 1 << 20}));
  const auto json = nlohmann::json::parse(JsonOf(report));
  ASSERT_EQ(json["rows"].size(), report.rows.size());
  const PlanRow& row = report.rows[0];
  EXPECT_EQ(json["rows"][0]["name"], row.candidate.name);
  EXPECT_EQ(json["rows"][0]["peak_bytes"], row.peak_bytes());
  EXPECT_EQ(json["rows"][0]["categories"]["parameter"], PeakOf(row, MemoryCategory::kParameter));
  EXPECT_EQ(json["rows"][0]["fits"], row.fits);
}

TEST(PlanTest, WrongSetups) {
  TrainingSetup setup = Small();
  setup.batch = 7;
  setup.accumulate = 2;
  setup.tokens = 300;
  EXPECT_THAT(Message(Plan(setup, {}).status()),
              AllOf(HasSubstr("batch 7 is not divisible by accumulate 2"),
                    HasSubstr("tokens is 300, the model takes at most 256")));
  EXPECT_THAT(Message(Plan(Small(), {.num_ranks = 0}).status()), HasSubstr("got 0"));
  EXPECT_THAT(Message(Plan(Small(), {.device_bytes = -1}).status()), HasSubstr("positive"));
  EXPECT_THAT(Message(Plan(Small(), {.num_ranks = 2, .only = "zero7"}).status()),
              HasSubstr("has \"zero7\" in its name"));
  EXPECT_THAT(Message(SetupOf("lama2-7b").status()), HasSubstr("did you mean \"llama2-7b\""));
  EXPECT_THAT(Message(SetupOfConfig(R"({"model_type": "lama"})", "c.json").status()),
              AllOf(HasSubstr("c.json"), HasSubstr("lama"), HasSubstr("llama")));
  EXPECT_THAT(Message(SetupOfConfig(R"({"model_type": "vit"})", "c.json").status()),
              HasSubstr("takes no tokens"));
  setup = Small();
  setup.optimizer = "adamv";
  const PlanReport refused = ValueOrThrow(Plan(setup, {}));
  EXPECT_THAT(refused.rows[0].refusal, HasSubstr("did you mean \"adam"));
}

}  // namespace plan_test
}  // namespace apogee::plan
