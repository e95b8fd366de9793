// SPDX-License-Identifier: Apache-2.0

// What HybridParallelPlugin refuses: every problem in one message, with the numbers, and nothing
// changed.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace hybrid_parallel_errors_test {

using nn::parallel::ParallelStyle;
using ::testing::AllOf;
using testing::ExpectBoostRefused;
using testing::ExpectOptionsRefused;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunRanks;
using testing::Says;

nn::Gpt2Config Gpt2Of(int64_t heads) {
  return {.vocab_size = 19, .n_positions = 6, .n_embd = 4 * heads, .n_layer = 2, .n_head = heads};
}

TEST(HybridParallelErrorsTest, BadOptionsAreListedTogether) {
  ExpectOptionsRefused(
      {.tp_size = 0, .stage = 4},
      AllOf(HasSubstr("tp_size must be at least 1, got 0"),
            HasSubstr("stage must be 0 (nothing sharded), 1 (states), 2 (gradients "
                      "too) or 3 (parameters too), got 4"),
            HasSubstr("max_norm"), HasSubstr("bucket_bytes")),
      {.max_norm = -1, .bucket_bytes = 0});
  ExpectOptionsRefused(
      {.communication_dtype = Precision::kF64, .master_weights = false, .offload_states = true},
      AllOf(HasSubstr("communication_dtype needs stage 1 or 2, got 0"),
            HasSubstr("master_weights = false needs stage 1 or 2, got 0"),
            HasSubstr("offload_states needs stage 1 or 2, got 0")));
}

TEST(HybridParallelErrorsTest, WorldAndHeadsAreListedTogether) {
  ExpectBoostRefused(
      4, {.tp_size = 3}, [] { return std::make_unique<nn::Gpt2>(Gpt2Of(4)); },
      AllOf(HasSubstr("tp_size 3 does not divide the world of 4 ranks"), HasSubstr("plan \"gpt2\""),
            HasSubstr("tp 3 does not divide its 4 heads"), HasSubstr("transformer.h.*.attn.c_attn"),
            HasSubstr("transformer.h.*.attn.c_proj")));
}

TEST(HybridParallelErrorsTest, KeyValueHeadsAndDimsAreNamed) {
  ExpectBoostRefused(
      4, {.tp_size = 4},
      [] {
        return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = 19,
                                                           .hidden_size = 32,
                                                           .intermediate_size = 22,
                                                           .num_hidden_layers = 2,
                                                           .num_attention_heads = 8,
                                                           .num_key_value_heads = 2,
                                                           .max_position_embeddings = 8});
      },
      AllOf(HasSubstr("tp 4 does not divide its 2 key-value heads"),
            HasSubstr("tp 4 does not divide dim 0 (1 sections of 22)"),
            HasSubstr("model.layers.0.mlp.gate_proj.weight"), Not(HasSubstr("8 heads"))));
}

TEST(HybridParallelErrorsTest, APlanOfAnotherModelNamesEveryRule) {
  ExpectBoostRefused(
      2, {.tp_size = 2, .plan = nn::parallel::DecoderPlan(nn::DecoderConfigOf(nn::LlamaConfig{}))},
      [] { return std::make_unique<nn::Gpt2>(Gpt2Of(4)); },
      AllOf(
          HasSubstr("plan \"llama\", rule \"model.embed_tokens\" (vocabulary): no module has such "
                    "a name; layers here are transformer.wte, transformer.wpe"),
          HasSubstr("\"model.layers.*.self_attn.q_proj\" (column)"),
          HasSubstr("\"model.layers.*.mlp.down_proj\" (row)"),
          Not(HasSubstr("\"lm_head\" (vocabulary): no module"))));
}

TEST(HybridParallelErrorsTest, PlansThatMakeNoSense) {
  const auto gpt2 = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(4)); };
  const auto refused = [&](std::vector<nn::parallel::PlanRule> rules, const auto& matcher) {
    ExpectBoostRefused(2, {.tp_size = 2, .plan = {{.name = "mine", .rules = std::move(rules)}}},
                       gpt2, matcher);
  };
  refused({}, HasSubstr("plan \"mine\" has no rules"));
  refused({{.pattern = "*.ln_1", .style = ParallelStyle::kColumn}},
          HasSubstr("transformer.h.0.ln_1 is not an nn::Linear, nn::Conv1d or nn::Conv2d, which "
                    "this style is for"));
  refused({{.pattern = "*.c_fc", .style = ParallelStyle::kColumn},
           {.pattern = "*.0.mlp.c_fc", .style = ParallelStyle::kRow}},
          HasSubstr("rule \"*.c_fc\" names transformer.h.0.mlp.c_fc, too"));
  refused({{.pattern = "*.c_fc", .style = ParallelStyle::kColumn, .sections = 3}},
          HasSubstr("does not consist of 3 equal sections"));
  // A tied weight cut as a table, but not as the head.
  refused({{.pattern = "transformer.wte", .style = ParallelStyle::kVocabulary},
           {.pattern = "lm_head", .style = ParallelStyle::kRow}},
          HasSubstr("transformer.wte.weight is cut in another way by another rule"));
  refused({{.pattern = "nothing.*", .style = ParallelStyle::kParameter}},
          HasSubstr("no parameter has such a name; parameters here are transformer.wte.weight"));
  refused({{.pattern = "*.c_fc", .style = ParallelStyle::kColumn, .units = 3}},
          AllOf(HasSubstr("tp 2 does not divide its 3 units")));
}

TEST(HybridParallelErrorsTest, AModelWithoutAPlan) {
  class Own : public nn::Module {
   public:
    Own() : fc_(Register("fc", std::make_shared<nn::Linear>(4, 4))) {}
    Tensor Forward(const Tensor& x) override { return (*fc_)(x); }

   private:
    std::shared_ptr<nn::Linear> fc_;
  };
  ExpectBoostRefused(
      2, {.tp_size = 2}, [] { return std::make_unique<Own>(); },
      HasSubstr("no plan comes with Apogee for this model"));
}

TEST(HybridParallelErrorsTest, GradientsBeforeBoostAndSecondBoosts) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(2));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    const auto first = model.Parameters()[0];
    first->set_grad(Tensor::EmptyLike(first->data()));
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    EXPECT_THAT([&] { std::ignore = Booster(plugin).boost(model, optimizer); },
                Says(HasSubstr("has a gradient, which would be lost; call zero_grad")));
    optimizer.zero_grad();
    std::ignore = Booster(plugin).boost(model, optimizer);
    EXPECT_THAT([&] { std::ignore = Booster(plugin).boost(model, optimizer); },
                Says(HasSubstr("another model")));
    HybridParallelPlugin other(world, {}, {.tp_size = 2});
    EXPECT_THAT(
        [&] { std::ignore = Booster(other).boost(model, optimizer); },
        Says(HasSubstr(
            "is a shard already: another plugin has it; an optimizer can be boosted once")));
    HybridParallelPlugin zero(world, {}, {.tp_size = 1, .stage = 1});
    EXPECT_THAT([&] { std::ignore = Booster(zero).boost(model, optimizer); },
                Says(HasSubstr("has been cut by another plugin; a model can be boosted once")));
  });
}

// A sum of squares of one element, an update that needs all of them and does not say so.
struct OwnRule : optim::AdamRule<optim::AdamWOptions> {
  using AdamRule::AdamRule;
  optim::OptimizerTraits traits() override { return {}; }
};
using Own = optim::OptimizerOf<OwnRule>;

TEST(HybridParallelErrorsTest, AnOptimizerThatIsNotKnownToBeExact) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(4));
    model.Initialize(world.context(), {.seed = 1});
    Own optimizer(model.Parameters(), {});
    for (const int zero : {0, 1, 3}) {
      HybridParallelPlugin plugin(world, {}, {.tp_size = 2, .stage = zero});
      EXPECT_THAT([&] { std::ignore = Booster(plugin).boost(model, optimizer); },
                  Says(HasSubstr("does not say that its update is exact on shards")));
    }
  });
}

TEST(HybridParallelErrorsTest, TheDataRankNeedsAWorldThatFits) {
  RunRanks(3, [](comm::World& world) {
    const HybridParallelPlugin plugin(world, {}, {.tp_size = 2});
    EXPECT_THAT([&] { plugin.data_rank(); },
                Says(HasSubstr("tp_size 2 does not divide the world of 3 ranks")));
  });
}

}  // namespace hybrid_parallel_errors_test
}  // namespace apogee
