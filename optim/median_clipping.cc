#include "apogee/optim/median_clipping.h"

#include <algorithm>
#include <cmath>

namespace apogee::optim {

double& MedianClipping::Number(const char* name) {
  std::vector<double>& values = state_[name];
  values.resize(1);
  return values[0];
}

double MedianClipping::Next(double norm) {
  if (options_.scale == 0) return 1;
  double& count = Number("clip_step");
  const auto step = static_cast<int64_t>(count++);
  if (step == 0) return std::isfinite(norm) ? 1 : 0;
  std::vector<double>& norms = state_["model_norms"];
  norms.resize(static_cast<size_t>(options_.period));
  // One infinity for everything that is not finite: NaN would make the order, and so the median,
  // arbitrary.
  norms[static_cast<size_t>(step % options_.period)] = std::isfinite(norm) ? norm : INFINITY;
  const bool early = options_.early_estimates && step < options_.period &&
                     (step == 10 || step == 20 || step == 40);
  if (early || step % options_.period == 0) SetThreshold(step, early);

  const auto threshold = state_.find("model_norm_threshold");
  if (threshold == state_.end()) return std::isfinite(norm) ? 1 : 0;
  const double factor = threshold->second[0] / (norm + 1e-20);
  if (factor >= 1) return 1;
  ++Number("num_clipped");
  return std::isfinite(norm) ? factor : 0;
}

void MedianClipping::SetThreshold(int64_t step, bool early) {
  std::vector<double> sorted = state_["model_norms"];
  std::ranges::sort(sorted);
  // The slots that no step has filled yet are zeros, which come first.
  if (early) sorted.erase(sorted.begin(), sorted.end() - step);
  const auto n = static_cast<int64_t>(sorted.size());
  std::vector<double> quartiles;
  for (int64_t q = 0; q < 5; ++q) {
    quartiles.push_back(sorted[static_cast<size_t>(std::min(n - 1, n / 4 * q))]);
  }
  const double median = quartiles[2];
  state_["quartiles"] = quartiles;
  double& num_clipped = Number("num_clipped");
  Number("percent_clipped") = 100 * num_clipped / static_cast<double>(n);
  num_clipped = 0;
  // With most norms not finite the last threshold is the better one.
  if (std::isfinite(median))
    Number("model_norm_threshold") = options_.scale * median * (early ? 2 : 1);
}

}  // namespace apogee::optim
