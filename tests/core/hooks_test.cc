// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/hooks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace apogee {
namespace hooks_test {

using ::testing::ElementsAre;

struct Log {
  std::vector<int> events;
  Hooks<int> hooks;
  HookHandle Add(int name) {
    return hooks.Add([this, name](int value) { events.push_back(name * value); });
  }
  std::vector<int> Run(int value) {
    events.clear();
    hooks.Run(value);
    return events;
  }
};

TEST(HooksTest, RunInOrderUntilTheyAreRemoved) {
  Log log;
  EXPECT_TRUE(log.hooks.empty());
  log.Add(1);
  HookHandle second = log.Add(2);
  log.Add(3);
  EXPECT_THAT(log.Run(10), ElementsAre(10, 20, 30)) << "a dropped handle leaves its hook";
  second.Remove();
  EXPECT_THAT(log.Run(1), ElementsAre(1, 3));
  second.Remove();
  EXPECT_THAT(log.Run(1), ElementsAre(1, 3));
}

TEST(HooksTest, ASubscriptionEndsByItself) {
  Log log;
  {
    const Subscription own = log.Add(1);
    EXPECT_FALSE(log.hooks.empty());
    EXPECT_THAT(log.Run(1), ElementsAre(1));
  }
  EXPECT_TRUE(log.hooks.empty());
  Subscription first = log.Add(1), second = log.Add(2);
  Subscription moved = std::move(first);
  EXPECT_THAT(log.Run(1), ElementsAre(1, 2));
  second = std::move(moved);
  EXPECT_THAT(log.Run(1), ElementsAre(1)) << "the one that was assigned to has ended";
}

TEST(HooksTest, HandlesMayOutliveTheHooks) {
  std::optional<Hooks<>> hooks(std::in_place);
  const auto captured = std::make_shared<int>();
  HookHandle handle = hooks->Add([captured] {});
  {
    const Subscription own = hooks->Add([captured] {});
    hooks.reset();
    EXPECT_EQ(captured.use_count(), 1) << "neither keeps a hook alive";
  }
  handle.Remove();
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(HooksTest, RemovedHooksDoNotPileUp) {
  Hooks<> hooks;
  const auto captured = std::make_shared<int>();
  for (int i = 0; i < 100; ++i) hooks.Add([captured] {}).Remove();
  EXPECT_EQ(captured.use_count(), 2) << "the last one's";
  hooks.Run();
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(HooksTest, HooksMayAddAndRemoveHooks) {
  Log log;
  HookHandle self, later;
  self = log.hooks.Add([&](int) {
    log.events.push_back(1);
    self.Remove();
    later.Remove();
    log.Add(4);
  });
  later = log.Add(2);
  log.Add(3);
  EXPECT_THAT(log.Run(1), ElementsAre(1, 3, 4));
  EXPECT_THAT(log.Run(1), ElementsAre(3, 4));
}

TEST(HooksTest, AHookThatThrowsStopsTheRunOnly) {
  Log log;
  HookHandle bad = log.hooks.Add([](int) { throw std::runtime_error("no"); });
  log.Add(2);
  EXPECT_THROW(log.Run(1), std::runtime_error);
  EXPECT_TRUE(log.events.empty());
  bad.Remove();
  EXPECT_THAT(log.Run(1), ElementsAre(2));
}

}  // namespace hooks_test
}  // namespace apogee
