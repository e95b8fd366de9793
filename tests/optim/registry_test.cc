// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/registry.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/distributed.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace registry_test {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class RegistryTest : public ::testing::Test {
 protected:
  std::string MessageOf(const std::string& name, const OptionMap& options) {
    return std::string(MakeOptimizer(name, {param_}, options).status().message());
  }
  ContextPtr context_ = TestContext();
  ParameterPtr param_ = RandomParam("w", {3}, DType::kF32, context_, 1);
};

TEST_F(RegistryTest, MakesWhatItIsAskedFor) {
  auto made = MakeOptimizer("adamw", {param_},
                            {{"lr", "3e-4"}, {"betas", "0.8,0.95"}, {"amsgrad", "true"}});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto* adamw = dynamic_cast<AdamW*>(made->get());
  ASSERT_NE(adamw, nullptr);
  EXPECT_EQ(adamw->options(0).lr, 3e-4);
  EXPECT_EQ(adamw->options(0).betas[1], 0.95);
  EXPECT_EQ(adamw->options(0).weight_decay, 0.01);
  EXPECT_TRUE(adamw->options(0).amsgrad);
  EXPECT_EQ((*MakeOptimizer("adamw_hf", {param_}))->group_options(0).at("hf_style"), "true");
}

// The distributed form of an optimizer is the optimizer, bound by a plugin.
TEST_F(RegistryTest, DistributedNames) {
  static_assert(std::is_same_v<DistributedAdafactor, Adafactor>);
  for (const std::string& name : OptimizerNames()) {
    auto made = MakeOptimizer("distributed_" + name, {param_});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ((*made)->name(), (*MakeOptimizer(name, {param_}))->name());
    EXPECT_TRUE((*made)->SupportsShards()) << name;
  }
  EXPECT_FALSE(MakeOptimizer("distributed_", {param_}).ok());
}

TEST_F(RegistryTest, Messages) {
  EXPECT_THAT(MessageOf("adamv", {}),
              MatchesRegex("unknown optimizer \"adamv\" \\(did you mean \"adamw\"\\?\\); known: "
                           ".*adam, adamw, .*sgd.*"));
  EXPECT_THAT(MessageOf("sgd", {{"momentun", "0.9"}}), HasSubstr("did you mean \"momentum\""));
  EXPECT_EQ(MessageOf("sgd", {{"lr", "1e-3x"}}),
            "optimizer sgd: lr: expected a number, got \"1e-3x\"");
  EXPECT_EQ(MessageOf("sgd", {{"nesterov", "yes"}}),
            "optimizer sgd: nesterov: expected true or false, got \"yes\"");
  EXPECT_EQ(MessageOf("adam", {{"betas", "0.9"}}),
            "optimizer adam: betas: expected two numbers with a comma, got \"0.9\"");
  EXPECT_THAT(MessageOf("adam", {{"lr", "-1"}, {"eps", "nan"}}), HasSubstr("lr is -1"));
}

TEST_F(RegistryTest, OptionWords) {
  EXPECT_EQ(ParseOptions({"lr=1", "betas=0.9,0.95"})->at("betas"), "0.9,0.95");
  EXPECT_FALSE(ParseOptions({"lr"}).ok());
  EXPECT_FALSE(ParseOptions({"=1"}).ok());
  EXPECT_FALSE(ParseOptions({"lr=1", "lr=2"}).ok());
}

TEST_F(RegistryTest, OptionsAreExactAsText) {
  AdamOptions options{.lr = 0.1 + 0.2, .betas = {1.0 / 3, 0.999}, .eps = 1e-300};
  AdamOptions read;
  ASSERT_TRUE(SetOptions(GetOptions(options), "adam", read).ok());
  EXPECT_EQ(read.lr, options.lr);
  EXPECT_EQ(read.betas, options.betas);
  EXPECT_EQ(read.eps, options.eps);
}

}  // namespace registry_test
}  // namespace apogee::optim
