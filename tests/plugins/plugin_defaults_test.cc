// SPDX-License-Identifier: Apache-2.0

// What Plugin answers for a user's plugin, and that it refuses to guess.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/plugins/plugin.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace plugin_defaults_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

// Overrides only what it must.
class SmallPlugin : public Plugin {
 public:
  explicit SmallPlugin(comm::GroupPtr group) : group_(std::move(group)) {}
  std::string name() const override { return "small"; }
  optim::Optimizer& Configure(nn::Module&, optim::Optimizer& optimizer) override {
    return optimizer;
  }
  void Backward(const Tensor& loss, optim::Optimizer&) override { autograd::Backward(loss); }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return nullptr; }
  std::shared_ptr<void> NoSync() override { return nullptr; }

 private:
  comm::GroupPtr group_;
};

// Keeps the first half of each parameter, and forgets to gather it.
class HalfPlugin : public SmallPlugin {
 public:
  using SmallPlugin::SmallPlugin;
  Layout LayoutOf(const autograd::Parameter& parameter) const override {
    return Layout(parameter.shape(), {.segments = {{0, parameter.shape().numel() / 2}}});
  }
};

TEST(PluginDefaultsTest, EveryRankHasItsOwnData) {
  RunRanks(3, [](comm::World& world) {
    const SmallPlugin plugin(world.group());
    EXPECT_EQ(plugin.data_rank(), world.rank());
    EXPECT_EQ(plugin.data_size(), 3);
  });
  const SmallPlugin alone(nullptr);
  EXPECT_EQ(alone.data_rank(), 0);
  EXPECT_EQ(alone.data_size(), 1);
}

TEST(PluginDefaultsTest, AWholeValueIsTheParametersAndNeverAPart) {
  nn::Mlp model({.sizes = {3, 4}});
  model.Initialize(CpuContext(), {.seed = 1});
  const autograd::Parameter& weight = *model.Parameters()[0];
  EXPECT_EQ(SmallPlugin(nullptr).WholeValue(weight).ToVector<double>(),
            weight.data().ToVector<double>());
  EXPECT_THAT([&] { std::ignore = HalfPlugin(nullptr).WholeValue(weight); },
              Says(AllOf(HasSubstr("plugin small keeps a part of \"" + weight.name() + "\""),
                         HasSubstr("must override Plugin::WholeValue"))));
}

}  // namespace plugin_defaults_test
}  // namespace apogee
