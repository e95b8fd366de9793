// Every plugin must give the losses of one rank. f64 leaves only the order of sums.
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "train.h"

namespace {

struct Layout {
  std::string plugin;
  int ranks;
  apogee::optim::OptionMap options = {};
};

std::vector<double> Losses(const Layout& layout) {
  const app::TrainOptions options{.plugin = layout.plugin,
                                  .plugin_options = layout.options,
                                  .precision = apogee::Precision::kF64,
                                  .steps = 20};
  std::vector<double> losses;
  apogee::OkOrThrow(
      apogee::comm::launch({.num_ranks = layout.ranks}, [&](apogee::comm::World& world) {
        app::Train(world, options, [&](int64_t, double loss) { losses.push_back(loss); });
      }));
  return losses;
}

}  // namespace

int main() try {
  const std::vector<double> want = Losses({"single", 1});
  const std::vector<Layout> layouts = {
      {"ddp", 3}, {"zero2", 2}, {"gemini", 4}, {"hybrid", 4, {{"tp_size", "2"}, {"stage", "1"}}}};
  int failures = 0;
  for (const Layout& layout : layouts) {
    const std::vector<double> got = Losses(layout);
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
    const bool exact = worst <= 1e-11;
    std::printf("%-8s %d ranks: largest difference of a loss %.1e%s\n", layout.plugin.c_str(),
                layout.ranks, worst, exact ? "" : "  WRONG");
    failures += exact ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "exact_test: %s\n", error.what());
  return 1;
}
