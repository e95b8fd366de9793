// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/registry.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/distributed.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/heavy_ball.h"
#include "apogee/tests/support/message_of.h"

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
    EXPECT_TRUE((*made)->traits().shards) << name;
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

TEST_F(RegistryTest, OwnOptimizers) {
  OptimizerRegistry registry;
  registry.Add<HeavyBall>("heavy_ball", HeavyBallOptions{.lr = 0.5});
  registry.Add<HeavyBall>("light_ball", HeavyBallOptions{.momentum = 0.1});
  const ParameterPtr w = RandomParam("own", {3}, DType::kF64, CpuContext(), 1);
  const std::vector<double> start = Values(w->value());
  auto made = MakeOptimizer("heavy_ball", {w}, {{"momentum", "0"}}, registry);
  ASSERT_TRUE(made.ok()) << made.status();
  w->set_grad(Tensor::FromVector<double>({1, 2, 3}, {3}, CpuContext()));
  (*made)->step();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(Values(w->value())[i], start[i] - 0.5 * static_cast<double>(i + 1));
  }
  EXPECT_EQ((*registry.Make("distributed_light_ball", {w}))->group_options(0).at("momentum"),
            "0.1");
  EXPECT_EQ(OptimizerDefaults("heavy_ball", registry)->at("lr"), "0.5");
  EXPECT_FALSE(TakesLocalGradients("heavy_ball", registry));
  EXPECT_TRUE(registry.TakesLocalGradients("onebit_adam"));
  EXPECT_TRUE(registry.Make("adamw", {w}).ok());
  EXPECT_EQ(OptimizerNames(registry).size(), OptimizerNames().size() + 2);
  EXPECT_FALSE(MakeOptimizer("heavy_ball", {w}).ok()) << "registries are independent";
}

TEST_F(RegistryTest, MessagesNameOwnOptimizers) {
  OptimizerRegistry registry;
  registry.Add<HeavyBall>("heavy_ball", HeavyBallOptions{});
  const auto message = [&](const std::string& name, const OptionMap& options) {
    return Message(MakeOptimizer(name, {param_}, options, registry).status());
  };
  EXPECT_THAT(message("heavy_bell", {}),
              MatchesRegex("unknown optimizer \"heavy_bell\" \\(did you mean \"heavy_ball\"\\?\\); "
                           "known: .*galore_adamw8bit, heavy_ball, lamb.*"));
  EXPECT_THAT(message("heavy_ball", {{"momentun", "0"}}), HasSubstr("did you mean \"momentum\""));
  EXPECT_THAT(message("heavy_ball", {{"lr", "-1"}}), HasSubstr("lr is -1"));
  const auto add = [&](const std::string& name) {
    return apogee::testing::MessageOf([&] { registry.Add<HeavyBall>(name, HeavyBallOptions{}); });
  };
  EXPECT_THAT(add("heavy_ball"), HasSubstr("the name \"heavy_ball\" is taken"));
  EXPECT_THAT(add("adamw"), HasSubstr("the name \"adamw\" is taken"));
  EXPECT_THAT(add("distributed_ball"), HasSubstr("does not begin with \"distributed_\""));
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
