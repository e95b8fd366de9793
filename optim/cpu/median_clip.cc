// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "apogee/optim/cpu/kernels.h"

namespace apogee::optim::cpu {
namespace {

void SetThreshold(const MedianClippingOptions& options, int64_t step, bool early,
                  std::span<const double> norms, MedianClippingState& state) {
  std::vector<double> sorted(norms.begin(), norms.end());
  std::ranges::sort(sorted);
  // Slots that no step has filled yet are zeros, which come first.
  if (early) sorted.erase(sorted.begin(), sorted.end() - step);
  const auto n = static_cast<int64_t>(sorted.size());
  for (int64_t q = 0; q < 5; ++q) {
    state.quartiles[q] = sorted[static_cast<size_t>(std::min(n - 1, n / 4 * q))];
  }
  const double median = state.quartiles[2];
  state.percent_clipped = 100 * std::max(state.num_clipped, 0.0) / static_cast<double>(n);
  state.num_clipped = 0;
  // If most norms are not finite, keeps the last threshold.
  if (std::isfinite(median)) state.threshold = options.scale * median * (early ? 2 : 1);
}

// The clip factor of a step whose gradients have `norm`.
double NextFactor(const MedianClippingOptions& options, double norm, MedianClippingState& state) {
  const auto step = static_cast<int64_t>(state.clip_step++);
  if (step == 0) return std::isfinite(norm) ? 1 : 0;
  const std::span norms(reinterpret_cast<double*>(&state + 1), static_cast<size_t>(options.period));
  // Stores infinity for a norm that is not finite: NaN would make the order, and so the median,
  // arbitrary.
  norms[static_cast<size_t>(step % options.period)] = std::isfinite(norm) ? norm : INFINITY;
  const bool early =
      options.early_estimates && step < options.period && (step == 10 || step == 20 || step == 40);
  if (early || step % options.period == 0) SetThreshold(options, step, early, norms, state);
  if (state.threshold < 0) return std::isfinite(norm) ? 1 : 0;
  const double factor = state.threshold / (norm + 1e-20);
  if (factor >= 1) return 1;
  state.num_clipped = std::max(state.num_clipped, 0.0) + 1;
  return std::isfinite(norm) ? factor : 0;
}

}  // namespace

void median_clip(const DeviceContext&, const MedianClipArgs& args) {
  double total = 0;
  for (int64_t i = 0; i < args.count; ++i) total += args.shares[3 * i];
  StepGate& gate = *args.gate;
  gate = {};
  gate.grad_norm = std::sqrt(total);
  gate.clip_factor =
      args.state == nullptr ? 1 : NextFactor(args.options, gate.grad_norm, *args.state);
  const double scale = args.grad_scale;
  gate.grad_scale = scale * (args.dropped_only && gate.clip_factor != 0 ? 1 : gate.clip_factor);
}

}  // namespace apogee::optim::cpu
