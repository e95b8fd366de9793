// SPDX-License-Identifier: Apache-2.0

// What HybridParallelPlugin refuses of sequence parallelism: every problem in one message, with the
// numbers, before anything has changed; and what goes wrong silently without it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace hybrid_sequence_errors_test {

using nn::parallel::ParallelStyle;
using nn::parallel::SequenceMode;
using ::testing::AllOf;
using testing::ExpectBoostRefused;
using testing::ExpectOptionsRefused;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

nn::Gpt2Config Gpt2Of(int64_t heads) {
  return {.vocab_size = 19, .n_positions = 12, .n_embd = 4 * heads, .n_layer = 2, .n_head = heads};
}

TEST(HybridSequenceErrorsTest, BadOptionsAreListedTogether) {
  ExpectOptionsRefused({.tp_size = 0, .sp_size = 0, .stage = 4},
                       AllOf(HasSubstr("tp_size must be at least 1, got 0"),
                             HasSubstr("sp_size must be at least 1, got 0"),
                             HasSubstr("stage must be 0 (nothing sharded)")));
  ExpectOptionsRefused({.sp_size = 2}, HasSubstr("sp_size 2 needs an sp_mode"));
  ExpectOptionsRefused({.sp_mode = SequenceMode::kRingAttention},
                       HasSubstr("sp_mode ring_attn needs an sp_size above 1"));
  ExpectOptionsRefused({.sp_size = 2, .sp_mode = SequenceMode::kSplitGather},
                       AllOf(HasSubstr("needs a tp_size above 1, got 1"),
                             HasSubstr("sp_size must be 1 or tp_size 1, got 2")));
  ExpectOptionsRefused({.tp_size = 4, .sp_size = 2, .sp_mode = SequenceMode::kSplitGather},
                       HasSubstr("sp_size must be 1 or tp_size 4, got 2"));
}

TEST(HybridSequenceErrorsTest, AnUnknownModeHasASuggestion) {
  const absl::StatusOr<SequenceMode> mode = nn::parallel::ParseSequenceMode("ring_atn");
  EXPECT_THAT(Message(mode.status()),
              HasSubstr("unknown sp_mode \"ring_atn\" (did you mean \"ring_attn\"?); known: none, "
                        "split_gather, all_to_all, ring_attn"));
  EXPECT_EQ(*nn::parallel::ParseSequenceMode(""), SequenceMode::kNone);
  for (const SequenceMode each : {SequenceMode::kNone, SequenceMode::kSplitGather,
                                  SequenceMode::kAllToAll, SequenceMode::kRingAttention}) {
    EXPECT_EQ(*nn::parallel::ParseSequenceMode(Name(each)), each);
  }
}

TEST(HybridSequenceErrorsTest, WorldAndHeadsAreListedTogether) {
  ExpectBoostRefused(
      6, {.tp_size = 2, .sp_size = 4, .sp_mode = SequenceMode::kAllToAll},
      [] { return std::make_unique<nn::Gpt2>(Gpt2Of(12)); },
      AllOf(HasSubstr("sp_size 4 x tp_size 2 = 8 does not divide the world of 6 ranks"),
            HasSubstr("\"transformer.h.*.attn.core\" (attention): sp_size 4 does not divide the 6 "
                      "heads of a rank (12 over tp 2)")));
  ExpectBoostRefused(
      4, {.sp_size = 4, .sp_mode = SequenceMode::kAllToAll},
      [] {
        return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = 19,
                                                           .hidden_size = 32,
                                                           .intermediate_size = 24,
                                                           .num_hidden_layers = 2,
                                                           .num_attention_heads = 8,
                                                           .num_key_value_heads = 2,
                                                           .max_position_embeddings = 8});
      },
      HasSubstr("does not divide the 2 key-value heads of a rank"));
}

// A model whose plan does not say where tokens meet.
class Own : public nn::Module {
 public:
  Own()
      : up_(Register("up", std::make_shared<nn::Linear>(4, 12))),
        core_(Register("core", std::make_shared<nn::AttentionCore>(2))),
        other_(Register("other", std::make_shared<nn::AttentionCore>(2))),
        down_(Register("down", std::make_shared<nn::Linear>(4, 4))) {}
  Tensor Forward(const Tensor& x) override { return (*down_)((*core_)((*up_)(x))); }

 private:
  std::shared_ptr<nn::Linear> up_;
  std::shared_ptr<nn::AttentionCore> core_, other_;
  std::shared_ptr<nn::Linear> down_;
};

TEST(HybridSequenceErrorsTest, PlansThatDoNotSayWhereAttentionIs) {
  const auto own = [] { return std::make_unique<Own>(); };
  ExpectBoostRefused(2, {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention}, own,
                     AllOf(HasSubstr("no plan comes with Apogee for this model"),
                           HasSubstr("and where its attention is")));
  const auto planned = [&](std::vector<nn::parallel::PlanRule> rules,
                           const std::string& sequence_module, SequenceMode mode,
                           const auto& matcher) {
    ExpectBoostRefused(
        2,
        {.tp_size = 2,
         .sp_mode = mode,
         .plan = {{.name = "mine", .rules = std::move(rules), .sequence_module = sequence_module}}},
        own, matcher);
  };
  using enum ParallelStyle;
  const nn::parallel::PlanRule up{.pattern = "up", .style = kColumn, .sections = 3};
  planned({up}, "", SequenceMode::kSplitGather, HasSubstr("no rule says where attention is"));
  planned({up, {.pattern = "core", .style = kAttention}}, "", SequenceMode::kSplitGather,
          HasSubstr("other is an nn::AttentionCore that no rule names"));
  planned({up, {.pattern = "*o*e*", .style = kAttention}, {.pattern = "down", .style = kRowSplit}},
          "", SequenceMode::kSplitGather, HasSubstr("sp_mode split_gather has no such style"));
  planned({up, {.pattern = "core", .style = kAttention}}, "down", SequenceMode::kSplitGather,
          HasSubstr("names a module outside of the sequence_module \"down\""));
  planned({up}, "nowhere", SequenceMode::kSplitGather,
          HasSubstr("no module has the name \"nowhere\""));
  planned({{.pattern = "up", .style = kAttention}}, "", SequenceMode::kSplitGather,
          HasSubstr("up is not an nn::AttentionCore"));
  // What a derived class does with the tokens is not known.
  class Derived : public nn::Gpt2 {
   public:
    using Gpt2::Gpt2;
  };
  ExpectBoostRefused(
      2, {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention},
      [] { return std::make_unique<Derived>(Gpt2Of(4)); },
      HasSubstr("no rule says where attention is"));
}

TEST(HybridSequenceErrorsTest, UpdatesInsideBackward) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(4));
    model.Initialize(world.context(), {.seed = 1});
    optim::Lomo optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {},
                                {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather, .stage = 3});
    EXPECT_THAT([&] { std::ignore = Booster(plugin).boost(model, optimizer); },
                Says(HasSubstr("optimizer lomo updates inside backward at stage 3")));
  });
}

Tensor Tokens(int64_t tokens, int64_t seed, const ContextPtr& context) {
  std::vector<int64_t> values;
  for (int64_t t = 0; t < tokens; ++t) values.push_back((t * t + seed) % 19);
  return Tensor::FromVector<int64_t>(values, {1, tokens}, context);
}

TEST(HybridSequenceErrorsTest, SequencesAreCheckedWhenTheyCome) {
  const auto refused = [](const HybridParallelOptions& options, int64_t tokens,
                          const auto& matcher) {
    RunRanks(2, [&](comm::World& world) {
      nn::Gpt2 model(Gpt2Of(4));
      model.Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {}, options);
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      EXPECT_THAT([&] { model(Tokens(tokens, 0, world.context())); }, Says(matcher));
    });
  };
  refused({.sp_size = 2, .sp_mode = SequenceMode::kRingAttention}, 6,
          HasSubstr("sequences of 6 tokens do not divide by 4, which 2 ranks with two pieces"));
  refused({.sp_size = 2, .sp_mode = SequenceMode::kAllToAll}, 7,
          HasSubstr("sequences of 7 tokens do not divide by 2"));
  refused({.tp_size = 2, .sp_mode = SequenceMode::kSplitGather}, 7,
          HasSubstr("sequences of 7 tokens do not divide by 2"));
  refused({.sp_size = 2, .sp_mode = SequenceMode::kRingAttention}, 16,
          HasSubstr("gpt2: needs tokens [batch, up to 12], got [1, 16]"));
}

TEST(HybridSequenceErrorsTest, RanksOfOneGroupNeedTheSameBatch) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(4));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.sp_size = 2, .sp_mode = SequenceMode::kAllToAll});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor tokens = Tokens(8, world.rank(), world.context());
    booster.backward(boosted.criterion(model(tokens), tokens), optimizer);
    EXPECT_THAT([&] { optimizer.step(); },
                Says(HasSubstr("ranks that share one copy of the model (its pp, sp and tp axes) "
                               "gave it different inputs")));
  });
}

TEST(HybridSequenceErrorsTest, ClippingAddendsByHand) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(4));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor tokens = Tokens(8, 0, world.context());
    booster.backward(boosted.criterion(model(tokens), tokens), optimizer);
    const std::vector<autograd::ParameterPtr> norm = {
        model.FindParameter("transformer.ln_f.weight")};
    EXPECT_THAT([&] { optim::ClipGradNorm(norm, {.max_norm = 1}); },
                Says(HasSubstr("this rank's part of a sum over the tp group")));
  });
}

// In fp16 the first steps may overflow, on every rank alike.
TEST(HybridSequenceErrorsTest, OverflowsAreNotTakenForWholeGradients) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(4));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {.precision = Precision::kFp16},
                                {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor tokens = Tokens(8, 0, world.context());
    for (const double factor : {1e9, 1.0}) {
      const Tensor loss = autograd::Scale(boosted.criterion(model(tokens), tokens), factor);
      booster.backward(loss, optimizer);
      EXPECT_NO_THROW(optimizer.step());
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.num_skipped_steps(), 1);
  });
}

// A parameter whose gradient is whole on every rank would be counted once per rank.
TEST(HybridSequenceErrorsTest, GradientsThatAreNotPartial) {
  class Scaled : public nn::Module {
   public:
    Scaled()
        : lm_(Register("lm", std::make_shared<nn::Gpt2>(Gpt2Of(4)))),
          scale_(RegisterParameter("scale", {19}, nn::Init::Normal(0, 1))) {}
    Tensor Forward(const Tensor& tokens) override {
      return autograd::Add((*lm_)(tokens), scale_->value());
    }

   private:
    std::shared_ptr<nn::Module> lm_;
    autograd::ParameterPtr scale_;
  };
  RunRanks(2, [](comm::World& world) {
    Scaled model;
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    nn::parallel::ParallelPlan plan = *nn::parallel::ShippedPlan(model);
    plan.sequence_module = "";  // wrong: "scale" is added to whole logits
    HybridParallelPlugin plugin(
        world, {}, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather, .plan = plan});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const Tensor tokens = Tokens(8, 0, world.context());
    booster.backward(boosted.criterion(model(tokens), tokens), optimizer);
    EXPECT_THAT([&] { optimizer.step(); },
                Says(AllOf(HasSubstr("parameter \"scale\""), HasSubstr("is the same on all"))));
  });
}

}  // namespace hybrid_sequence_errors_test
}  // namespace apogee
