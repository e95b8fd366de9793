// SPDX-License-Identifier: Apache-2.0

// Cells with ignored targets: their targets, and which layouts and optimizers meet them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "apogee/matrix/matrix.h"
#include "apogee/matrix/plugins.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::matrix {
namespace ignored_test {

// How many targets count in [first, first + count) of a step, in micro-batches of `window` samples.
int64_t NumTargets(const char* workload, int64_t step, int64_t first, int64_t count,
                   int64_t window) {
  const data::Batch batch = LibraryCatalog().FindWorkload(workload).Batch(
      CpuContext(), {.step = step, .first = first, .count = count, .ignoring_window = window});
  const std::vector<int64_t> targets = batch.targets.ToVector<int64_t>();
  return std::ranges::count_if(targets, [](int64_t target) { return target >= 0; });
}

TEST(IgnoredTest, IgnoredTargetsAreUnevenAndSomeRanksHaveNoOthers) {
  for (const char* workload : {"gpt2", "llama_tied", "gpt2_long"}) {
    for (const int64_t window : {36, 12}) {
      for (int64_t first = 0; first < 36; first += window) {
        std::set<int64_t> empty;  // of four ranks, over the steps
        for (int64_t step = 0; step < kNumSteps; ++step) {
          // Their mean must be a number.
          EXPECT_GT(NumTargets(workload, step, first, window, window), 0) << workload << step;
          std::set<int64_t> numbers;
          for (int64_t rank = 0; rank < 4; ++rank) {
            const int64_t count = window / 4;
            const int64_t number = NumTargets(workload, step, first + rank * count, count, window);
            numbers.insert(number);
            if (number == 0) empty.insert(rank);
          }
          EXPECT_GT(numbers.size(), 1u) << workload << " in step " << step;
        }
        EXPECT_EQ(empty.size(), 4u) << workload;
      }
    }
    EXPECT_EQ(NumTargets(workload, 1, 0, 36, 0) % 36, 0) << "none is ignored by default";
  }
}

TEST(IgnoredTest, EveryOptimizerMeetsIgnoredTargetsUnderEveryLayoutAndTheSampleHasSome) {
  const std::vector<Cell> all = AllCells();
  std::set<std::string> layouts, ignored;
  for (const Cell& cell : all) {
    if (cell.precision != "f64") continue;
    // AppendIgnored says why it leaves these out.
    if (cell.optimizer == "came" && LibraryCatalog().FindPlugin(cell.plugin).pp > 1) continue;
    const std::string layout = cell.optimizer + cell.plugin + std::to_string(cell.world);
    layouts.insert(layout);
    if (cell.ignored) ignored.insert(layout);
  }
  EXPECT_EQ(ignored, layouts);
  std::set<std::string> plugins;
  for (const Cell& cell : PairwiseSample(all, 600)) {
    if (cell.ignored) plugins.insert(cell.plugin);
  }
  for (const PluginVariant& plugin : LibraryCatalog().plugins) {
    const bool has_f64 = std::ranges::count(plugin.precisions, "f64") > 0;
    EXPECT_EQ(plugins.contains(plugin.name), has_f64) << plugin.name;
  }
}

}  // namespace ignored_test
}  // namespace apogee::matrix
