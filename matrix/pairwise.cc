// SPDX-License-Identifier: Apache-2.0

// PairwiseSample: see cell.h.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>

#include "apogee/matrix/cell.h"
#include "apogee/matrix/plugins.h"

namespace apogee::matrix {
namespace {

constexpr size_t kNumAxes = 9;
constexpr size_t kNumPairs = kNumAxes * (kNumAxes - 1) / 2;

// Hybrid plugins have many layouts, which don't differ for the optimizer. In pairs with optimizers
// and windows they count as one plugin, on worlds of their data-parallel size, with three
// workloads. The optimizer also doesn't see which targets are ignored. The hybrid plugin and its
// workload are axes of their own; for sequence-parallel plugins, and of a model whose head is
// chunked, only the family of the workload counts.
std::array<std::string, kNumAxes> AxisValues(const Cell& cell) {
  const PluginVariant& plugin = cell.catalog->FindPlugin(cell.plugin);
  const bool hybrid = plugin.is_hybrid;
  const bool of_family = cell.workload.ends_with("_long") || cell.workload.ends_with("_chunked");
  const std::string family = cell.workload.substr(0, cell.workload.find('_'));
  return {cell.optimizer,
          hybrid ? "hybrid" : cell.plugin,
          std::to_string(cell.world / plugin.ranks_per_sample()),
          cell.precision,
          std::to_string(cell.accumulate) + (cell.no_sync ? "ns" : "") + (cell.clip ? "clip" : ""),
          family,
          cell.ignored ? "ignored" : "",
          hybrid ? cell.plugin : "",
          hybrid && !of_family ? cell.workload : ""};
}

// Pairs of axes that the sample need not cover.
bool IsLeftOut(size_t a, size_t b) {
  constexpr size_t kOptimizer = 0, kWindow = 4, kIgnored = 6, kHybridPlugin = 7;
  if (a == kOptimizer && b == kIgnored) return true;
  return b >= kHybridPlugin && (a == kOptimizer || a == kWindow);
}

// The numbers of each cell's pairs; `num_pairs` becomes the number of different pairs.
std::vector<std::array<size_t, kNumPairs>> NumberPairs(const std::vector<Cell>& cells,
                                                       size_t& num_pairs) {
  std::array<std::map<std::string, size_t>, kNumAxes> values;
  std::unordered_map<size_t, size_t>
      numbers;  // of a pair: by its axes and the numbers of its values
  std::vector<std::array<size_t, kNumPairs>> pairs(cells.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    const std::array<std::string, kNumAxes> names = AxisValues(cells[c]);
    std::array<size_t, kNumAxes> number;
    for (size_t a = 0; a < kNumAxes; ++a) {
      number[a] = values[a].emplace(names[a], values[a].size()).first->second;
    }
    size_t k = 0;
    for (size_t a = 0; a < kNumAxes; ++a) {
      for (size_t b = a + 1; b < kNumAxes; ++b, ++k) {
        constexpr size_t kMostValues = 1 << 20;
        const bool left_out = IsLeftOut(a, b);
        const size_t first = left_out ? 0 : number[a] + 1, second = left_out ? 0 : number[b] + 1;
        const size_t key = (first * kMostValues + second) * kNumPairs + k;
        pairs[c][k] = numbers.emplace(key, numbers.size()).first->second;
      }
    }
  }
  num_pairs = numbers.size();
  return pairs;
}

}  // namespace

int64_t NumPairs(const std::vector<Cell>& cells) {
  size_t num_pairs = 0;
  NumberPairs(cells, num_pairs);
  return static_cast<int64_t>(num_pairs);
}

std::vector<Cell> PairwiseSample(const std::vector<Cell>& cells, int64_t limit) {
  size_t num_left = 0;
  const auto pairs = NumberPairs(cells, num_left);
  // A cell's gain is the number of its pairs that the sample lacks.
  std::vector<std::vector<size_t>> cells_of(num_left);
  for (size_t c = 0; c < cells.size(); ++c) {
    for (const size_t pair : pairs[c]) cells_of[pair].push_back(c);
  }
  std::vector<size_t> gains(cells.size(), kNumPairs);
  std::vector<bool> covered(num_left, false);
  std::vector<Cell> sample;
  while (num_left > 0 && static_cast<int64_t>(sample.size()) < limit) {
    const auto best = static_cast<size_t>(std::ranges::max_element(gains) - gains.begin());
    for (const size_t pair : pairs[best]) {
      if (covered[pair]) continue;
      covered[pair] = true;
      --num_left;
      for (const size_t c : cells_of[pair]) --gains[c];
    }
    sample.push_back(cells[best]);
  }
  return sample;
}

}  // namespace apogee::matrix
