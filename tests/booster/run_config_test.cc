// SPDX-License-Identifier: Apache-2.0

// What a checkpoint keeps of a run's configuration: another model behind the same shapes is
// refused, settings and options that differ are told, on every rank.
#include "apogee/booster/run_config.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace run_config_test {

using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Given {
  RunConfig config = {};
  optim::OptionMap options = {};
  std::string schedule = {};  // empty: none
  Precision precision = Precision::kF32;
};

// A run of `model` on one rank, boosted.
class OneRun {
 public:
  OneRun(nn::Module& model, const Given& given, uint64_t seed = 1)
      : plugin_({.precision = given.precision}), booster(plugin_) {
    model.Initialize(CpuContext(), {.seed = seed});
    optimizer_ = ValueOrThrow(optim::MakeOptimizer("adamw", model.Parameters(), given.options));
    if (!given.schedule.empty()) {
      scheduler_.emplace(
          *optimizer_, ValueOrThrow(optim::MakeLrSchedule(given.schedule, {{"total_steps", "9"}})));
    }
    booster.set_run_config(given.config);
    std::ignore =
        booster.boost(model, *optimizer_, {.scheduler = scheduler_ ? &*scheduler_ : nullptr});
  }

 private:
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::LrScheduler> scheduler_;
  SingleRankPlugin plugin_;

 public:
  Booster booster;
};

absl::Status Save(nn::Module& model, const std::string& folder, const Given& given = {}) {
  return OneRun(model, given).booster.save_training_state(folder, {.step = 1});
}

absl::StatusOr<Resumed> Resume(nn::Module& model, const std::string& folder,
                               const Given& given = {}) {
  return OneRun(model, given, /*seed=*/2).booster.resume(folder);
}

nn::Gpt2Config Gpt2Of(int64_t heads) {
  return {.vocab_size = 16, .n_positions = 8, .n_embd = 8, .n_layer = 1, .n_head = heads};
}

nn::LlamaConfig LlamaOf(int64_t heads, int64_t kv_heads) {
  return {.vocab_size = 16,
          .hidden_size = 16,
          .intermediate_size = 8,
          .num_hidden_layers = 1,
          .num_attention_heads = heads,
          .num_key_value_heads = kv_heads,
          .max_position_embeddings = 8};
}

// A model of one's own that says nothing about itself: what it is made of does.
class OwnModel : public nn::Module {
 public:
  OwnModel(int64_t head_dim, double eps)
      : qkv_(Register("qkv", std::make_shared<nn::Linear>(8, 24))),
        core_(Register("core", std::make_shared<nn::AttentionCore>(head_dim))),
        norm_(Register("norm", std::make_shared<nn::RmsNorm>(8, eps))) {}
  Tensor Forward(const Tensor& x) override { return (*norm_)((*core_)((*qkv_)(x))); }

 private:
  std::shared_ptr<nn::Linear> qkv_;
  std::shared_ptr<nn::AttentionCore> core_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

class RunConfigTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::string folder_ = dir_ / "checkpoints";
};

TEST_F(RunConfigTest, AnotherModelBehindTheSameShapesIsRefused) {
  nn::Gpt2 four(Gpt2Of(4)), two(Gpt2Of(2)), again(Gpt2Of(4));
  ASSERT_EQ(Save(four, folder_), absl::OkStatus());
  const absl::Status status = Resume(two, folder_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(Message(status),
            folder_ +
                "/step-00000001 does not fit this run:\n  model.n_head: saved with \"4\", this run "
                "has \"2\"\n  use the saved settings, or begin a new run in another folder");
  EXPECT_THAT(ValueOrThrow(Resume(again, folder_)).notices, IsEmpty());
}

TEST_F(RunConfigTest, HeadsOfALlamaAndActivationsCountToo) {
  nn::Llama four(LlamaOf(4, 2)), two(LlamaOf(2, 1));
  ASSERT_EQ(Save(four, folder_), absl::OkStatus());
  EXPECT_THAT(Message(Resume(two, folder_).status()),
              AllOf(HasSubstr("model.num_attention_heads: saved with \"4\", this run has \"2\""),
                    HasSubstr("model.num_key_value_heads: saved with \"2\", this run has \"1\"")));
  nn::Mlp relu({.sizes = {2, 3, 2}}), tanh({.sizes = {2, 3, 2}, .activation = Activation::kTanh});
  ASSERT_EQ(Save(relu, dir_ / "mlp"), absl::OkStatus());
  EXPECT_THAT(Message(Resume(tanh, dir_ / "mlp").status()),
              HasSubstr("model.activation: saved with \"relu\", this run has \"tanh\""));
}

TEST_F(RunConfigTest, AModelOfOnesOwnSpeaksThroughItsLayers) {
  OwnModel two(2, 1e-5), four(4, 1e-6), again(2, 1e-5);
  ASSERT_EQ(Save(two, folder_), absl::OkStatus());
  EXPECT_THAT(Message(Resume(four, folder_).status()),
              AllOf(HasSubstr("model.core.head_dim: saved with \"2\", this run has \"4\""),
                    HasSubstr("model.norm.eps: saved with \"1e-05\", this run has \"1e-06\"")));
  EXPECT_THAT(ValueOrThrow(Resume(again, folder_)).notices, IsEmpty());
}

TEST_F(RunConfigTest, WhatTheProgramSaysIsRefusedOrTold) {
  nn::Mlp model({.sizes = {2, 2}}), same({.sizes = {2, 2}}), other({.sizes = {2, 2}});
  ASSERT_EQ(
      Save(model, folder_, {.config = {.identity = {{"data", "a"}}, .settings = {{"steps", "9"}}}}),
      absl::OkStatus());
  EXPECT_THAT(
      ValueOrThrow(Resume(same, folder_,
                          {.config = {.identity = {{"data", "a"}}, .settings = {{"steps", "12"}}}}))
          .notices,
      ElementsAre("step-00000001: steps is \"12\" now, in the saved run it was \"9\""));
  EXPECT_THAT(
      Message(Resume(other, folder_, {.config = {.identity = {{"data", "b\x1b[2J"}}}}).status()),
      HasSubstr("data: saved with \"a\", this run has \"b?[2J\""));
  EXPECT_THAT(ValueOrThrow(Resume(other, folder_)).notices,
              ElementsAre(HasSubstr("the saved run has data in its configuration, this one has "
                                    "not: not compared")));
}

TEST_F(RunConfigTest, OptionsThatHaveNoEffectAreTold) {
  nn::Mlp model({.sizes = {2, 2}}), other({.sizes = {2, 2}});
  ASSERT_EQ(Save(model, folder_, {.options = {{"lr", "0.5"}, {"eps", "1e-6"}}}), absl::OkStatus());
  const auto resumed =
      ValueOrThrow(Resume(other, folder_, {.options = {{"lr", "0.25"}, {"eps", "1e-6"}}}));
  EXPECT_THAT(
      resumed.notices,
      ElementsAre(HasSubstr("the optimizer's lr 0.25 has no effect: the saved run's 0.5 is kept")));
}

// The scheduler has set the rate of its first step by the time of boost: bases are compared.
TEST_F(RunConfigTest, ASchedulesBaseRatesAreCompared) {
  nn::Mlp model({.sizes = {2, 2}}), same({.sizes = {2, 2}}), other({.sizes = {2, 2}});
  ASSERT_EQ(Save(model, folder_, {.options = {{"lr", "0.5"}}, .schedule = "cosine"}),
            absl::OkStatus());
  EXPECT_THAT(
      ValueOrThrow(Resume(same, folder_, {.options = {{"lr", "0.5"}}, .schedule = "cosine"}))
          .notices,
      IsEmpty());
  EXPECT_THAT(
      ValueOrThrow(Resume(other, folder_, {.options = {{"lr", "0.25"}}, .schedule = "cosine"}))
          .notices,
      ElementsAre(HasSubstr("lr 0.25 has no effect: the saved run's 0.5 is kept")));
}

// A run that has resumed with options of no effect saves those that went on.
TEST_F(RunConfigTest, TheOptionsThatWentOnAreSavedAgain) {
  nn::Mlp model({.sizes = {2, 2}}), second({.sizes = {2, 2}}), third({.sizes = {2, 2}});
  ASSERT_EQ(Save(model, folder_, {.options = {{"lr", "0.5"}}}), absl::OkStatus());
  {
    OneRun run(second, {.options = {{"lr", "0.25"}}});
    ASSERT_TRUE(run.booster.resume(folder_).ok());
    ASSERT_EQ(run.booster.save_training_state(folder_, {.step = 2}), absl::OkStatus());
  }
  const auto resumed = ValueOrThrow(Resume(third, folder_, {.options = {{"lr", "0.5"}}}));
  EXPECT_EQ(resumed.position.step, 2);
  EXPECT_THAT(resumed.notices, IsEmpty());
}

TEST_F(RunConfigTest, AnotherPrecisionIsOneLine) {
  nn::Gpt2 model(Gpt2Of(2)), other(Gpt2Of(2));
  ASSERT_EQ(Save(model, folder_, {.precision = Precision::kBf16}), absl::OkStatus());
  const std::string message = Message(Resume(other, folder_).status());
  EXPECT_THAT(message, HasSubstr("weights were saved as bf16, this run has them as f32"));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

TEST_F(RunConfigTest, EveryRankHearsTheSame) {
  nn::Gpt2 model(Gpt2Of(4));
  ASSERT_EQ(Save(model, folder_), absl::OkStatus());
  std::vector<absl::Status> statuses(2);
  std::vector<std::vector<std::string>> notices(2);
  RunRanks(2, [&](comm::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    for (const int64_t heads : {2, 4}) {
      nn::Gpt2 other(Gpt2Of(heads));
      other.Initialize(world.context());
      const auto optimizer = ValueOrThrow(optim::MakeOptimizer("adamw", other.Parameters()));
      DdpPlugin plugin(world.group());
      Booster booster(plugin);
      std::ignore = booster.boost(other, *optimizer);
      const auto resumed = booster.resume(folder_);
      if (heads == 2) statuses[rank] = resumed.status();
      if (heads == 4) notices[rank] = ValueOrThrow(resumed).notices;
    }
  });
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[0])) << statuses[0];
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_THAT(notices[0],
              ElementsAre("step-00000001: plugin is \"ddp\" now, in the saved run it was "
                          "\"single_rank\"",
                          "step-00000001: ranks is \"2\" now, in the saved run it was \"1\""));
  EXPECT_EQ(notices[0], notices[1]);
}

TEST(CompareConfigTest, AnotherDigestIsDamageAndNoneIsAnEarlierVersion) {
  Attributes attributes;
  const RunConfig config{.identity = {{"a", "1"}, {"b", "2"}}};
  AddConfig(config, attributes);
  EXPECT_EQ(ValueOrThrow(CompareConfig(attributes, config, "c")).refused, "");
  Attributes changed = attributes;
  changed.Set("config/identity/a", std::string("3"));
  EXPECT_TRUE(absl::IsDataLoss(CompareConfig(changed, config, "c").status()));
  const auto earlier = ValueOrThrow(CompareConfig(Attributes(), config, "c"));
  EXPECT_FALSE(earlier.was_saved);
  EXPECT_THAT(earlier.notices, ElementsAre(HasSubstr("was saved by an earlier version")));
}

}  // namespace run_config_test
}  // namespace apogee
