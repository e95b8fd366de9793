// SPDX-License-Identifier: Apache-2.0

// Compiled without fused multiply-adds other than those written out, as on the GPU: these few
// numbers per parameter have the same bits everywhere.
#include <algorithm>
#include <cmath>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_loop.h"

namespace apogee::optim::cpu {
namespace {

// Reads and writes a state of one number.
template <typename C>
double Get(const void* state) {
  return static_cast<double>(*static_cast<const C*>(state));
}
template <typename C>
void Set(void* state, double value) {
  *static_cast<C*>(state) = static_cast<C>(value);
}

template <typename C, typename S>
struct Sizes {
  const ScaledAdamSizeArgs& args;
  const ScaledAdamSizeChunk& chunk;

  double Sum(int k) const { return static_cast<double>(static_cast<const S*>(chunk.sums)[k]); }
  double Rms() const {
    return static_cast<double>(static_cast<C>(std::sqrt(Sum(2) / chunk.numel)));
  }

  void Share() const {
    const bool scalar = chunk.param_rms == nullptr;
    const double rms = scalar             ? std::sqrt(Sum(2))
                       : chunk.first_step ? Rms()
                                          : Get<C>(chunk.param_rms);
    const double factor = scalar ? chunk.norm_factor : rms;
    chunk.share[0] = factor * factor * Sum(1);
    chunk.share[1] = std::sqrt(Sum(1));
    chunk.share[2] = rms;
  }

  void Step() const {
    chunk.step[0] = chunk.rate;
    chunk.step[1] = 0;
    if (chunk.param_rms == nullptr) return;
    const double clip = args.gate->clip_factor;
    const double grad = clip == 0 ? 0 : clip * Sum(0);  // drops an infinite gradient
    const double grad_sum = chunk.opens_period ? 0 : Get<C>(chunk.scale_grad_sum);
    const double grad_sumsq = chunk.opens_period ? 0 : Get<C>(chunk.scale_grad_sumsq);
    Set<C>(chunk.scale_grad_sum, grad_sum + grad);
    Set<C>(chunk.scale_grad_sumsq, std::fma(grad, grad, grad_sumsq));
    if (chunk.first_step || chunk.ends_period) Set<C>(chunk.param_rms, Rms());
    if (chunk.ends_period && !chunk.first_step) chunk.step[1] = args.one_minus_beta1 * Change();
    chunk.step[0] = chunk.rate * std::max(Get<C>(chunk.param_rms), args.min_rms);
  }

  // The growth of the parameter at the end of a period (a of scaled_adam.h).
  double Change() const {
    const double beta = chunk.beta;
    Set<C>(chunk.scale_exp_avg_sq,
           beta * Get<C>(chunk.scale_exp_avg_sq) +
               (1 - beta) * Get<C>(chunk.scale_grad_sumsq) / static_cast<double>(args.period));
    double change = -args.size_lr * chunk.root * Get<C>(chunk.scale_grad_sum) /
                    (std::sqrt(Get<C>(chunk.scale_exp_avg_sq)) + args.eps);
    const double rms = Get<C>(chunk.param_rms);
    if (rms < args.min_rms) change = 0;
    if (args.icefall_2023) {
      return rms > args.max_rms ? -args.size_lr * static_cast<double>(args.period) : change;
    }
    change = std::clamp(change, -0.1, 0.1);
    return rms > 0 ? std::min(change, (args.max_rms - rms) / rms) : change;
  }
};

template <typename Fn>
void ForEachChunk(const ScaledAdamSizeArgs& args, const Fn& fn) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    for (const ScaledAdamSizeChunk& chunk : args.chunks) fn(Sizes<C, S>{args, chunk});
  });
}

}  // namespace

void scaled_adam_shares(const DeviceContext&, const ScaledAdamSizeArgs& args) {
  ForEachChunk(args, [](const auto& sizes) { sizes.Share(); });
}

void scaled_adam_sizes(const DeviceContext&, const ScaledAdamSizeArgs& args) {
  ForEachChunk(args, [](const auto& sizes) { sizes.Step(); });
}

}  // namespace apogee::optim::cpu
