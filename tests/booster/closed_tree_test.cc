// SPDX-License-Identifier: Apache-2.0

// boost takes a model's parameters as they are called: what is registered late, or under names that
// would be one, is refused.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/layers.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace closed_tree_test {

using ::testing::HasSubstr;
using testing::MessageOf;

std::shared_ptr<nn::Linear> Layer() { return std::make_shared<nn::Linear>(2, 2); }

TEST(ClosedTreeTest, NothingIsRegisteredAfterBoost) {
  nn::Container model;
  const auto block = model.Register("block", std::make_shared<nn::Container>());
  block->Register("fc", Layer());
  model.Initialize(CpuContext());
  optim::Sgd optimizer(model.Parameters(), {});
  SingleRankPlugin plugin;
  Booster booster(plugin);
  block->Register("late", Layer());
  EXPECT_THAT(MessageOf([&] { std::ignore = booster.boost(model, optimizer); }),
              HasSubstr("parameter \"block.late.weight\" has no value yet"));
  model.Initialize(CpuContext());
  std::ignore = booster.boost(model, optimizer);
  EXPECT_THAT(MessageOf([&] { block->Register("later", Layer()); }),
              HasSubstr("module \"block\" gets the child \"later\" after boost"));
}

TEST(ClosedTreeTest, NamesThatWouldBeOneAreRefusedByBoost) {
  nn::Container model;
  const auto a = std::make_shared<nn::Container>();
  a->Register("b", Layer())->Initialize(CpuContext());
  model.Register("a", a);
  model.Register("a.b", Layer())->Initialize(CpuContext());
  optim::Sgd optimizer({a->Parameters()[0]}, {});  // an optimizer of both refuses them itself
  SingleRankPlugin plugin;
  Booster booster(plugin);
  EXPECT_THAT(MessageOf([&] { std::ignore = booster.boost(model, optimizer); }),
              HasSubstr("two parameters have the full name \"a.b.weight\""));
}

}  // namespace closed_tree_test
}  // namespace apogee
