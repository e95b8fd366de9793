// SPDX-License-Identifier: Apache-2.0

// PairwiseSample: see cell.h.
#include <array>
#include <map>
#include <utility>

#include "apogee/tools/matrix/cell.h"
#include "apogee/tools/matrix/plugins.h"

namespace apogee::tools {
namespace {

constexpr size_t kNumAxes = 9;
constexpr size_t kNumPairs = kNumAxes * (kNumAxes - 1) / 2;

// The layouts of hybrid plugins are many, and what differs between them is not the optimizer's:
// with optimizers and windows they count as one plugin on worlds of their data-parallel size, with
// three workloads. Nor does an optimizer see which targets were ignored. Which plugin and workload
// it is, are axes of their own; workloads of plugins that share sequences differ by family alone.
std::array<std::string, kNumAxes> AxisValues(const Cell& cell) {
  const PluginVariant& plugin = FindPlugin(cell.plugin);
  const bool hybrid = plugin.is_hybrid;
  const std::string family = cell.workload.substr(0, cell.workload.find('_'));
  return {cell.optimizer,
          hybrid ? "hybrid" : cell.plugin,
          std::to_string(cell.world / plugin.ranks_per_sample()),
          cell.precision,
          std::to_string(cell.accumulate) + (cell.no_sync ? "ns" : "") + (cell.clip ? "clip" : ""),
          family,
          cell.ignored ? "ignored" : "",
          hybrid ? cell.plugin : "",
          hybrid && !cell.workload.ends_with("_long") ? cell.workload : ""};
}

// Pairs of axes whose values the sample need not combine.
bool IsLeftOut(size_t a, size_t b) {
  constexpr size_t kOptimizer = 0, kWindow = 4, kIgnored = 6, kHybridPlugin = 7;
  if (a == kOptimizer && b == kIgnored) return true;
  return b >= kHybridPlugin && (a == kOptimizer || a == kWindow);
}

// Per cell the numbers of its pairs; `num_pairs`: how many different ones there are.
std::vector<std::array<size_t, kNumPairs>> NumberPairs(const std::vector<Cell>& cells,
                                                       size_t& num_pairs) {
  std::map<std::string, size_t> numbers;
  std::vector<std::array<size_t, kNumPairs>> pairs(cells.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    const std::array<std::string, kNumAxes> values = AxisValues(cells[c]);
    size_t k = 0;
    for (size_t a = 0; a < kNumAxes; ++a) {
      for (size_t b = a + 1; b < kNumAxes; ++b) {
        std::string key = std::to_string(a) + "|" + std::to_string(b);
        if (!IsLeftOut(a, b)) key += "|" + values[a] + "|" + values[b];
        pairs[c][k++] = numbers.emplace(key, numbers.size()).first->second;
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
  std::vector<bool> covered(num_left, false);
  std::vector<Cell> sample;
  while (num_left > 0 && static_cast<int64_t>(sample.size()) < limit) {
    size_t best = 0, best_gain = 0;
    for (size_t c = 0; c < cells.size(); ++c) {
      size_t gain = 0;
      for (const size_t pair : pairs[c]) gain += !covered[pair];
      if (gain > best_gain) {
        best = c;
        best_gain = gain;
      }
    }
    for (const size_t pair : pairs[best]) covered[pair] = true;
    num_left -= best_gain;
    sample.push_back(cells[best]);
  }
  return sample;
}

}  // namespace apogee::tools
