// SPDX-License-Identifier: Apache-2.0

// Plugins by name: what Create makes, what it refuses, and plugins of a program's own.
#include "apogee/plugins/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/make_context.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace registry_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunRanks;

// A plugin outside of the library. Its name tells its options.
struct OwnOptions {
  int every = 8;
  static std::vector<optim::OptionField<OwnOptions>> Fields() {
    return {{"every", &OwnOptions::every}};
  }
};
class OwnPlugin : public SingleRankPlugin {
 public:
  OwnPlugin(comm::GroupPtr /*group*/, const TrainingOptions& training, const OwnOptions& options)
      : SingleRankPlugin(training), options_(options) {
    APOGEE_CHECK(options.every > 0, "own plugin: every must be positive, got ", options.every);
  }
  std::string name() const override { return "own, every " + std::to_string(options_.every); }

 private:
  OwnOptions options_;
};

class PluginRegistryTest : public ::testing::Test {
 protected:
  std::string ErrorOf(const std::string& name, const optim::OptionMap& options,
                      const TrainingOptions& training = {}) const {
    return Message(registry_.Make(name, world_, training, options).status());
  }

  const comm::World world_{0, 1, CpuContext(), nullptr};
  PluginRegistry registry_;
};

TEST_F(PluginRegistryTest, HasThePluginsOfTheLibrary) {
  EXPECT_THAT(registry_.names(),
              ElementsAre("ddp", "gemini", "hybrid", "moe_hybrid", "single", "zero1", "zero2"));
  for (const std::string& name : registry_.names()) {
    EXPECT_TRUE(registry_.Make(name, world_, {}).ok()) << name;
    // What Defaults says is what a plugin without options has.
    const optim::OptionMap defaults = ValueOrThrow(registry_.Defaults(name));
    EXPECT_EQ(ErrorOf(name, defaults), "") << name;
  }
}

TEST_F(PluginRegistryTest, DefaultsAreText) {
  EXPECT_EQ(registry_.Defaults("zero1")->at("stage"), "1");
  EXPECT_EQ(registry_.Defaults("zero2")->at("stage"), "2");
  EXPECT_EQ(registry_.Defaults("gemini")->at("placement_policy"), "static");
  const optim::OptionMap hybrid = *registry_.Defaults("hybrid");
  EXPECT_EQ(hybrid.at("schedule"), "1f1b");
  EXPECT_EQ(hybrid.at("sp_mode"), "none");
  EXPECT_EQ(hybrid.at("communication_dtype"), "");
  EXPECT_EQ(hybrid.at("piece_costs"), "");
}

TEST_F(PluginRegistryTest, WrongNamesAndValuesSayWhatWouldBeRight) {
  const absl::Status unknown = registry_.Make("zero", world_, {}).status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_THAT(Message(unknown),
              AllOf(HasSubstr("unknown plugin \"zero\" (did you mean \"zero1\"?)"),
                    HasSubstr("known: ddp, gemini, hybrid, moe_hybrid, single")));
  EXPECT_TRUE(absl::IsNotFound(registry_.Defaults("zero").status()));
  EXPECT_THAT(ErrorOf("ddp", {{"reproducable", "1"}}),
              HasSubstr("plugin ddp: unknown option \"reproducable\" (did you mean "
                        "\"reproducible\"?)"));
  EXPECT_THAT(ErrorOf("hybrid", {{"tp_size", "two"}}),
              HasSubstr("plugin hybrid: tp_size: expected a whole number, got \"two\""));
  EXPECT_THAT(ErrorOf("hybrid", {{"schedule", "1f1B"}}),
              HasSubstr("plugin hybrid: schedule: unknown schedule \"1f1B\" (did you mean "
                        "\"1f1b\"?)"));
  EXPECT_THAT(ErrorOf("hybrid", {{"piece_costs", "1,x"}}), HasSubstr("piece_costs"));
  EXPECT_THAT(ErrorOf("zero2", {{"communication_dtype", "int7"}}),
              HasSubstr("plugin zero2: communication_dtype: unknown precision \"int7\""));
  EXPECT_THAT(ErrorOf("gemini", {{"placement_policy", "dynamic"}}),
              HasSubstr("unknown placement_policy \"dynamic\""));
  EXPECT_THAT(ErrorOf("single", {{"stage", "1"}}), HasSubstr("it has no options, got \"stage\""));
}

TEST_F(PluginRegistryTest, WhatTheConstructorRefusesIsAnError) {
  EXPECT_THAT(ErrorOf("zero1", {{"stage", "3"}}), HasSubstr("stage must be 1"));
  EXPECT_THAT(ErrorOf("ddp", {}, {.max_norm = -1}), HasSubstr("max_norm must be 0 (off)"));
  EXPECT_THAT(ErrorOf("single", {}, {.precision = Precision::kFp16}),
              HasSubstr("precision fp16 needs a loss scale"));
  EXPECT_THAT(ErrorOf("hybrid", {{"pp_size", "2"}, {"schedule", "zbv"}}),
              HasSubstr("pp_size 2 needs one of num_microbatches"));
}

TEST_F(PluginRegistryTest, OptionsArriveInThePlugin) {
  RunRanks(4, [&](comm::World& world) {
    const auto plugin = ValueOrThrow(registry_.Make(
        "hybrid", world, {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 512}},
        {{"tp_size", "2"}, {"stage", "1"}}));
    HybridParallelPlugin hand(
        world, {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 512}},
        {.tp_size = 2, .stage = 1});
    EXPECT_EQ(plugin->data_size(), hand.data_size());
    EXPECT_EQ(plugin->data_rank(), hand.data_rank());
    EXPECT_EQ(plugin->loss_scaler()->scale(), hand.loss_scale());
    const absl::Status alone = registry_.Make("single", world, {}).status();
    EXPECT_THAT(Message(alone), HasSubstr("would all train alone; use ddp"));
  });
  const auto gemini = ValueOrThrow(
      registry_.Make("gemini", world_, {.bucket_bytes = 5}, {{"offload_optim_frac", "0.5"}}));
  const auto& made = dynamic_cast<const GeminiPlugin&>(*gemini);
  EXPECT_EQ(made.options().placement.offload_optim_frac, 0.5);
  EXPECT_EQ(made.training_options().bucket_bytes, 5);
}

TEST_F(PluginRegistryTest, APluginOfAProgramsOwn) {
  registry_.Add<OwnPlugin, OwnOptions>("own_plugin");
  EXPECT_EQ(ValueOrThrow(registry_.Make("own_plugin", world_, {}))->name(), "own, every 8");
  EXPECT_EQ(ValueOrThrow(registry_.Make("own_plugin", world_, {}, {{"every", "3"}}))->name(),
            "own, every 3");
  EXPECT_THAT(ErrorOf("own_plugin", {{"every", "0"}}), HasSubstr("every must be positive, got 0"));
  EXPECT_THAT(ErrorOf("own_plugin", {{"each", "3"}}), HasSubstr("known: every"));
  EXPECT_THAT(Message(registry_.Make("own_plugn", world_, {}).status()),
              HasSubstr("did you mean \"own_plugin\"?"));
  // Another registry does not know it.
  EXPECT_TRUE(absl::IsNotFound(PluginRegistry().Make("own_plugin", world_, {}).status()));
}

TEST_F(PluginRegistryTest, ANameIsGivenOnce) {
  EXPECT_THROW((registry_.Add<OwnPlugin, OwnOptions>("ddp")), Error);
  EXPECT_THROW((registry_.Add<OwnPlugin, OwnOptions>("")), Error);
  registry_.Add<OwnPlugin, OwnOptions>("own_plugin");
  EXPECT_THROW((registry_.Add<OwnPlugin, OwnOptions>("own_plugin", {.every = 2})), Error);
  EXPECT_EQ(registry_.Defaults("own_plugin")->at("every"), "8");
}

}  // namespace registry_test
}  // namespace apogee
