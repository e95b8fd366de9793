// SPDX-License-Identifier: Apache-2.0

// The picture of a sharding plan is well formed and shows each element on the ranks that hold it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/pictures/maps.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/xml.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace shard_map_test {

using ::testing::HasSubstr;
using testing::ParseXml;
using testing::RunRanks;
using testing::XmlElement;

constexpr int64_t kVocab = 19;  // odd: two ranks pad it to 20

struct Drawn {
  int64_t elements = 0, padding = 0;
  double area = 0;  // pale blocks count less
  std::map<int, int64_t> of_rank;
};

std::map<std::string, Drawn> BlocksOf(const std::vector<XmlElement>& elements) {
  std::map<std::string, Drawn> drawn;
  for (const XmlElement& element : elements) {
    const auto& a = element.attributes;
    if (!a.contains("data-parameter")) continue;
    Drawn& parameter = drawn[a.at("data-parameter")];
    if (a.contains("data-padding")) {
      EXPECT_EQ(a.at("fill"), "url(#padding)");
      EXPECT_GE(std::stod(a.at("width")), 3);
      parameter.padding += std::stoll(a.at("data-padding"));
      continue;
    }
    const int64_t count = std::stoll(a.at("data-elements"));
    parameter.elements += count;
    parameter.of_rank[std::stoi(a.at("data-rank"))] += count;
    const double opacity = a.contains("fill-opacity") ? std::stod(a.at("fill-opacity")) : 1;
    parameter.area += std::stod(a.at("width")) * std::stod(a.at("height")) * opacity;
  }
  return drawn;
}

struct Result {
  std::string svg;
  std::map<std::string, int64_t> numel;
};

// On every rank the same picture.
Result Boost(int num_ranks, const HybridParallelOptions& options,
             const TrainingOptions& training = {}) {
  std::vector<Result> results(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    nn::Llama model({.vocab_size = kVocab,
                     .hidden_size = 32,
                     .intermediate_size = 24,
                     .num_hidden_layers = 1,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .max_position_embeddings = 8});
    model.Initialize(world.context(), {.seed = 1});
    Result& result = results[static_cast<size_t>(world.rank())];
    for (const auto& p : model.Parameters()) result.numel[p->name()] = p->shape().numel();
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, training, options);
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    result.svg =
        ShardMapSvg(boosted.optimizer, world.group(),
                    {.model = "llama", .tp_size = options.tp_size, .zero_stage = options.stage});
  });
  for (const Result& result : results) EXPECT_EQ(result.svg, results[0].svg);
  return results[0];
}

bool IsCut(const std::string& parameter) { return parameter.find("norm") == std::string::npos; }
bool IsVocabulary(const std::string& parameter) {
  return parameter == "model.embed_tokens.weight" || parameter == "lm_head.weight";
}

TEST(ShardMapTest, ShowsEachElementOnTheRanksThatHoldIt) {
  for (const int zero : {0, 2, 3}) {
    const Result result = Boost(4, {.tp_size = 2, .stage = zero}, {.bucket_bytes = 3000});
    EXPECT_THAT(result.svg, HasSubstr("Sharding plan of llama: tp 2, dp 2, ZeRO stage " +
                                      std::to_string(zero)));
    const auto drawn = BlocksOf(ParseXml(result.svg));
    ASSERT_EQ(drawn.size(), result.numel.size());
    for (const auto& [name, numel] : result.numel) {
      const Drawn& got = drawn.at(name);
      // tp copies of what is not cut, dp copies of what ZeRO does not shard.
      const int64_t copies = (IsCut(name) ? 1 : 2) * (zero == 0 ? 2 : 1);
      EXPECT_EQ(got.elements, copies * numel) << name;
      EXPECT_NEAR(got.area, static_cast<double>(copies) * 150 * 18, 0.5) << name;
      // One row of 32 on tp rank 1, once or in every dp copy.
      EXPECT_EQ(got.padding, IsVocabulary(name) ? (zero == 0 ? 2 : 1) * 32 : 0) << name;
      if (zero == 0 && IsVocabulary(name)) {
        EXPECT_EQ(got.of_rank.at(0), 10 * 32);
        EXPECT_EQ(got.of_rank.at(3), 9 * 32);
      }
    }
  }
}

// Equal elements have equal colours, others have others.
TEST(ShardMapTest, ColoursSayWhoHoldsTheSame) {
  const Result result = Boost(4, {.tp_size = 2, .stage = 0});
  std::map<std::string, std::vector<std::string>> fills;
  std::vector<std::string> legend;  // grey, then one colour per rank
  for (const XmlElement& element : ParseXml(result.svg)) {
    const auto& a = element.attributes;
    if (a.contains("data-elements")) fills[a.at("data-parameter")].push_back(a.at("fill"));
    if (a.contains("width") && a.at("width") == "24") legend.push_back(a.at("fill"));
  }
  ASSERT_GE(legend.size(), 5u);
  for (const auto& [name, of_rank] : fills) {
    ASSERT_EQ(of_rank.size(), 4u) << name << ": one block per rank";
    EXPECT_EQ(of_rank[0], legend[IsCut(name) ? 1 : 0]) << name << ": the first rank's, or grey";
    EXPECT_EQ(of_rank[0], of_rank[2]) << name;
    EXPECT_EQ(of_rank[1], of_rank[3]) << name;
    EXPECT_EQ(of_rank[0] == of_rank[1], !IsCut(name)) << name;
  }
}

// 4000 rows of 2 on 150 pixels, every other row: one pale block. Names are escaped.
TEST(ShardMapTest, BlocksTooFineToDrawAreOneBlock) {
  const ContextPtr context = CpuContext();
  const auto weight = std::make_shared<autograd::Parameter>(
      "a<b>&\"c\"\n", Tensor::Zeros({4000}, DType::kF32, context));
  optim::AdamW optimizer({weight}, {});
  std::vector<Segment> segments;
  for (int64_t row = 0; row < 4000; row += 2) segments.push_back({2 * row, 2});
  optimizer.views()[0].BindParameter(Layout({4000, 2}, {.segments = segments}));
  const std::string svg = ShardMapSvg(optimizer, nullptr, {.model = "<m>"});
  std::vector<XmlElement> blocks;
  const auto elements = ParseXml(svg);
  for (const XmlElement& element : elements) {
    if (element.attributes.contains("data-elements")) blocks.push_back(element);
  }
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].attributes.at("data-elements"), "4000");
  EXPECT_NEAR(std::stod(blocks[0].attributes.at("fill-opacity")), 0.5, 0.01);
  EXPECT_EQ(blocks[0].attributes.at("data-parameter"), "a<b>&\"c\"?");
  EXPECT_THAT(svg, HasSubstr("Sharding plan of &lt;m&gt;: tp 1, dp 1"));
}

TEST(ShardMapTest, RefusesATpSizeThatDoesNotDivide) {
  const auto weight =
      std::make_shared<autograd::Parameter>("w", Tensor::Zeros({4}, DType::kF32, CpuContext()));
  optim::AdamW optimizer({weight}, {});
  try {
    ShardMapSvg(optimizer, nullptr, {.model = "m", .tp_size = 2});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tp_size 2 does not divide 1 ranks"));
  }
}

TEST(ShardMapTest, RanksThatHoldOtherParametersAreNamed) {
  const absl::Status status = comm::launch({.num_ranks = 2}, [](comm::World& world) {
    const auto weight = std::make_shared<autograd::Parameter>(
        "w", Tensor::Zeros({4 + world.rank()}, DType::kF32, world.context()));
    optim::AdamW optimizer({weight}, {});
    ShardMapSvg(optimizer, world.group(), {.model = "m"});
  });
  EXPECT_THAT(Message(status), HasSubstr("holds other parameters than this rank, from \"w\" on"));
}

}  // namespace shard_map_test
}  // namespace apogee
