// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/choice.h"

#include <algorithm>
#include <limits>
#include <span>

namespace apogee::nn {
namespace {

constexpr double kOut = -std::numeric_limits<double>::infinity();

// The places of the k largest values, ascending; of equal values the lower place wins.
void LargestPlaces(std::span<const double> values, int64_t k, std::vector<int64_t>& places) {
  places.clear();
  const auto is_before = [&](int64_t a, int64_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const bool full = static_cast<int64_t>(places.size()) == k;
    if (full && !is_before(i, places.back())) continue;
    if (full) places.pop_back();
    places.insert(std::ranges::upper_bound(places, i, is_before), i);
  }
  std::ranges::sort(places);
}

// Takes the experts of all but the best groups out of the choice.
void KeepBestGroups(const ChoiceRule& rule, std::vector<double>& scores,
                    std::vector<int64_t>& places) {
  const auto size = static_cast<size_t>(rule.num_experts / rule.num_groups);
  const auto group_of = [&](size_t g) { return std::span(scores).subspan(g * size, size); };
  std::vector<double> group_scores;
  for (size_t g = 0; g < static_cast<size_t>(rule.num_groups); ++g) {
    LargestPlaces(group_of(g), std::min<int64_t>(2, static_cast<int64_t>(size)), places);
    double sum = 0;
    for (const int64_t place : places) sum += group_of(g)[static_cast<size_t>(place)];
    group_scores.push_back(sum);
  }
  LargestPlaces(group_scores, rule.top_groups, places);
  for (size_t g = 0; g < group_scores.size(); ++g) {
    if (!std::ranges::binary_search(places, static_cast<int64_t>(g))) {
      std::ranges::fill(group_of(g), kOut);
    }
  }
}

}  // namespace

std::vector<int64_t> ChooseExperts(const std::vector<double>& scores, const ChoiceRule& rule) {
  const auto num_experts = static_cast<size_t>(rule.num_experts);
  std::vector<int64_t> chosen, places;
  std::vector<double> token;
  chosen.reserve(scores.size() / num_experts * static_cast<size_t>(rule.top_k));
  for (size_t begin = 0; begin < scores.size(); begin += num_experts) {
    token.assign(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                 scores.begin() + static_cast<std::ptrdiff_t>(begin + num_experts));
    if (rule.top_groups < rule.num_groups) KeepBestGroups(rule, token, places);
    LargestPlaces(token, rule.top_k, places);
    chosen.insert(chosen.end(), places.begin(), places.end());
  }
  return chosen;
}

std::vector<int64_t> TakeTurns(int64_t num_tokens, const ChoiceRule& rule) {
  std::vector<int64_t> chosen;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(chosen.size());
    for (int64_t j = 0; j < rule.top_k; ++j) {
      chosen.push_back((t * rule.top_k + j) % rule.num_experts);
    }
    std::sort(chosen.begin() + begin, chosen.end());
  }
  return chosen;
}

RowPlan SortByExpert(const std::vector<int64_t>& chosen, const ChoiceRule& rule, int64_t capacity) {
  RowPlan plan{.counts = std::vector<int64_t>(static_cast<size_t>(rule.num_experts))};
  for (const int64_t expert : chosen) {
    int64_t& count = plan.counts[static_cast<size_t>(expert)];
    if (capacity == 0 || count < capacity) ++count;
  }
  std::vector<int64_t> next;  // the row of each expert's next choice
  std::vector<int64_t> left = plan.counts;
  int64_t rows = 0;
  for (const int64_t count : plan.counts) {
    next.push_back(rows);
    rows += count;
  }
  plan.tokens.resize(static_cast<size_t>(rows));
  plan.choices.resize(static_cast<size_t>(rows));
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto expert = static_cast<size_t>(chosen[i]);
    if (left[expert] == 0) continue;
    --left[expert];
    const auto row = static_cast<size_t>(next[expert]++);
    plan.tokens[row] = static_cast<int64_t>(i) / rule.top_k;
    plan.choices[row] = static_cast<int64_t>(i);
  }
  return plan;
}

}  // namespace apogee::nn
