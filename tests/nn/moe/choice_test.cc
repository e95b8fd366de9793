// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace apogee::nn {
namespace choice_test {

// All places, the best first: by score, then by place.
std::vector<int64_t> Ranked(const std::vector<double>& scores) {
  std::vector<int64_t> places(scores.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  return places;
}

// One token by the rules of docs/moe.md.
std::vector<int64_t> Choose(std::vector<double> scores, const ChoiceRule& rule) {
  const auto size = static_cast<size_t>(rule.num_experts / rule.num_groups);
  std::vector<double> group_scores;
  for (size_t g = 0; g < static_cast<size_t>(rule.num_groups); ++g) {
    std::vector<double> own(scores.begin() + static_cast<int64_t>(g * size),
                            scores.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(own.rbegin(), own.rend());
    group_scores.push_back(own[0] + (size > 1 ? own[1] : 0));
  }
  std::vector<int64_t> groups = Ranked(group_scores);
  groups.resize(static_cast<size_t>(rule.top_groups));
  std::vector<int64_t> chosen;
  for (const int64_t place : Ranked(scores)) {
    const int64_t group = place / static_cast<int64_t>(size);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) continue;
    if (static_cast<int64_t>(chosen.size()) < rule.top_k) chosen.push_back(place);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

TEST(ChoiceTest, TheBestAreChosenAndTiesGoToTheLowerIndex) {
  std::mt19937 random(5);
  const ChoiceRule rules[] = {{8, 1},       {8, 3},        {8, 8},      {8, 2, 4, 2},
                              {8, 4, 4, 2}, {12, 5, 3, 2}, {6, 2, 6, 3}};
  for (const ChoiceRule& rule : rules) {
    for (int kinds : {3, 1000}) {  // few different scores: many ties
      std::vector<double> scores;
      std::vector<int64_t> want;
      for (int token = 0; token < 200; ++token) {
        std::vector<double> own;
        for (int64_t e = 0; e < rule.num_experts; ++e) {
          own.push_back(static_cast<double>(random() % static_cast<unsigned>(kinds)) / kinds);
        }
        scores.insert(scores.end(), own.begin(), own.end());
        const auto chosen = Choose(own, rule);
        want.insert(want.end(), chosen.begin(), chosen.end());
      }
      EXPECT_EQ(ChooseExperts(scores, rule), want) << rule.num_experts << " " << rule.top_k;
    }
  }
}

TEST(ChoiceTest, NegativeScoresCanBeChosen) {  // a bias may make them so
  EXPECT_EQ(ChooseExperts({-3, -1, -2, -4}, {4, 2}), (std::vector<int64_t>{1, 2}));
}

TEST(ChoiceTest, RowsAreSortedByExpertThenToken) {
  const ChoiceRule rule{.num_experts = 4, .top_k = 2};
  const RowPlan plan = SortByExpert({0, 2, 2, 3, 0, 2}, rule);
  EXPECT_EQ(plan.counts, (std::vector<int64_t>{2, 0, 3, 1}));
  EXPECT_EQ(plan.tokens, (std::vector<int64_t>{0, 2, 0, 1, 2, 1}));
  EXPECT_EQ(plan.choices, (std::vector<int64_t>{0, 4, 1, 2, 5, 3}));
}

TEST(ChoiceTest, TheFirstTokensFillAnExpert) {
  const ChoiceRule rule{.num_experts = 3, .top_k = 1};
  const RowPlan plan = SortByExpert({1, 1, 0, 1, 2}, rule, /*capacity=*/2);
  EXPECT_EQ(plan.counts, (std::vector<int64_t>{1, 2, 1}));
  EXPECT_EQ(plan.tokens, (std::vector<int64_t>{2, 0, 1, 4}));
}

TEST(ChoiceTest, ExpertsTakeTurns) {
  const ChoiceRule rule{.num_experts = 6, .top_k = 4};
  const std::vector<int64_t> chosen = TakeTurns(9, rule);
  EXPECT_EQ(SortByExpert(chosen, rule).counts, std::vector<int64_t>(6, 6));
  for (size_t t = 0; t < 9; ++t) {
    const std::set<int64_t> own(chosen.begin() + static_cast<int64_t>(4 * t),
                                chosen.begin() + static_cast<int64_t>(4 * t + 4));
    EXPECT_EQ(own.size(), 4u);
  }
}

}  // namespace choice_test
}  // namespace apogee::nn
