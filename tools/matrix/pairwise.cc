// PairwiseSample: see cell.h.
#include <array>
#include <map>
#include <utility>

#include "apogee/tools/matrix/cell.h"

namespace apogee::tools {
namespace {

constexpr size_t kNumAxes = 6;
constexpr size_t kNumPairs = kNumAxes * (kNumAxes - 1) / 2;

std::array<std::string, kNumAxes> AxisValues(const Cell& cell) {
  return {cell.optimizer,
          cell.plugin,
          std::to_string(cell.world),
          cell.precision,
          std::to_string(cell.accumulate) + (cell.no_sync ? "ns" : "") + (cell.clip ? "clip" : ""),
          cell.workload};
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
        const std::string key = std::to_string(a) + values[a] + "|" + std::to_string(b) + values[b];
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
