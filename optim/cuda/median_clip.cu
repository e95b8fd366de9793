// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/optim/cuda/device/gate.cuh"
#include "apogee/optim/cuda/device/tile_list.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

struct ClipSettings {
  DeviceFactor grad_scale;
  MedianClippingOptions options;
  bool dropped_only;
  const double* shares;
  int64_t count;
  MedianClippingState* state;
  StepGate* gate;
};

// The root of the sum of the shares, added in the order of the parameters. Valid in the first
// thread.
__device__ double NormOf(const double* shares, int64_t count) {
  __shared__ double staged[kTileThreads];
  double total = 0;
  for (int64_t base = 0; base < count; base += kTileThreads) {
    const int64_t here = count - base < kTileThreads ? count - base : kTileThreads;
    if (threadIdx.x < here) staged[threadIdx.x] = shares[3 * (base + threadIdx.x)];
    __syncthreads();
    for (int64_t k = 0; threadIdx.x == 0 && k < here; ++k) total += staged[k];
    __syncthreads();
  }
  return sqrt(total);
}

// The quartiles of the norms. A quartile has a known place in the sorted norms; it is the norm with
// as many norms before it. Slots that no step has filled yet are zeros and come first.
__device__ void FindQuartiles(const double* norms, int64_t period, int64_t n, double* quartiles) {
  for (int64_t i = threadIdx.x; i < period; i += kTileThreads) {
    const double norm = norms[i];
    int64_t before = n - period;
    for (int64_t j = 0; j < period; ++j) {
      before += norms[j] < norm || (norms[j] == norm && j < i) ? 1 : 0;
    }
    for (int64_t q = 0; q < 5; ++q) {
      const int64_t place = n / 4 * q < n - 1 ? n / 4 * q : n - 1;
      if (before == place) quartiles[q] = norm;
    }
  }
}

// The factor of `norm` for the current threshold. Called in the first thread.
__device__ double FactorOf(double norm, MedianClippingState* state) {
  if (state->clip_step <= 1 || state->threshold < 0) return std::isfinite(norm) ? 1 : 0;
  const double factor = state->threshold / (norm + 1e-20);
  if (factor >= 1) return 1;
  state->num_clipped = (state->num_clipped < 0 ? 0 : state->num_clipped) + 1;
  return std::isfinite(norm) ? factor : 0;
}

// Runs as one block.
__global__ void __launch_bounds__(kTileThreads) MedianClipKernel(const ClipSettings s) {
  const bool first = threadIdx.x == 0;
  if (s.grad_scale.Skips()) {
    if (first) {
      *s.gate = {};
      s.gate->skip = true;
    }
    return;
  }
  const double norm = NormOf(s.shares, s.count);
  if (s.state != nullptr) {
    MedianClippingState& state = *s.state;
    double* norms = reinterpret_cast<double*>(s.state + 1);
    const int64_t period = s.options.period, step = static_cast<int64_t>(state.clip_step);
    const bool early =
        s.options.early_estimates && step < period && (step == 10 || step == 20 || step == 40);
    const bool sets = step > 0 && (early || step % period == 0);
    const int64_t n = early ? step : period;
    __syncthreads();
    if (first) {
      state.clip_step = static_cast<double>(step + 1);
      // Stores infinity for a norm that is not finite: NaN has no place in an order.
      if (step > 0) norms[step % period] = std::isfinite(norm) ? norm : INFINITY;
    }
    __syncthreads();
    if (sets) FindQuartiles(norms, period, n, state.quartiles);
    __syncthreads();
    if (first && sets) {
      const double clipped = state.num_clipped < 0 ? 0 : state.num_clipped;
      state.percent_clipped = 100 * clipped / static_cast<double>(n);
      state.num_clipped = 0;
      // If most norms are not finite, keeps the last threshold.
      if (std::isfinite(state.quartiles[2])) {
        state.threshold = s.options.scale * state.quartiles[2] * (early ? 2 : 1);
      }
    }
  }
  if (!first) return;
  StepGate& gate = *s.gate;
  gate = {};
  gate.grad_norm = norm;
  gate.clip_factor = s.state == nullptr ? 1 : FactorOf(norm, s.state);
  const double factor = s.dropped_only && gate.clip_factor != 0 ? 1 : gate.clip_factor;
  gate.grad_scale = s.grad_scale.value() * factor;
}

}  // namespace

void median_clip(const DeviceContext& context, const MedianClipArgs& args) {
  Launch(context, {.threads = {unsigned{kTileThreads}}}, &MedianClipKernel,
         ClipSettings{DeviceFactor(args.grad_scale), args.options, args.dropped_only, args.shares,
                      args.count, args.state, args.gate});
}

}  // namespace apogee::optim::cuda
