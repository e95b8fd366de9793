// SPDX-License-Identifier: Apache-2.0

// The same arithmetic as optim/cpu/scaled_adam_sizes.cc, with one thread per parameter.
#include "apogee/optim/cuda/device/dispatch_stats.h"
#include "apogee/optim/cuda/device/tile_list.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

// Reads and writes a state of one number.
template <typename C>
__device__ double Get(const void* state) {
  return static_cast<double>(*static_cast<const C*>(state));
}
template <typename C>
__device__ void Set(void* state, double value) {
  *static_cast<C*>(state) = static_cast<C>(value);
}

template <typename S>
__device__ double SumAt(const ScaledAdamSizeChunk& chunk, int k) {
  return static_cast<double>(static_cast<const S*>(chunk.sums)[k]);
}
template <typename C, typename S>
__device__ double NewRms(const ScaledAdamSizeChunk& chunk) {
  return static_cast<double>(static_cast<C>(sqrt(SumAt<S>(chunk, 2) / chunk.numel)));
}

template <typename C, typename S>
struct ShareBody {
  __device__ void operator()(const ScaledAdamSizeChunk& chunk, int64_t) const {
    if (threadIdx.x != 0) return;
    const bool scalar = chunk.param_rms == nullptr;
    const double rms = scalar             ? sqrt(SumAt<S>(chunk, 2))
                       : chunk.first_step ? NewRms<C, S>(chunk)
                                          : Get<C>(chunk.param_rms);
    const double factor = scalar ? chunk.norm_factor : rms;
    const double squares = SumAt<S>(chunk, 1);
    chunk.share[0] = factor * factor * squares;
    chunk.share[1] = sqrt(squares);
    chunk.share[2] = rms;
  }
};

template <typename C, typename S>
struct SizeBody {
  const StepGate* gate;
  double period, size_lr, one_minus_beta1, eps, min_rms, max_rms;
  bool icefall_2023;

  __device__ void operator()(const ScaledAdamSizeChunk& chunk, int64_t) const {
    if (threadIdx.x != 0 || gate->skip) return;
    chunk.step[0] = chunk.rate;
    chunk.step[1] = 0;
    if (chunk.param_rms == nullptr) return;
    const double clip = gate->clip_factor;
    // Drops an infinite gradient.
    const double grad = clip == 0 ? 0 : clip * SumAt<S>(chunk, 0);
    const double grad_sum = chunk.opens_period ? 0 : Get<C>(chunk.scale_grad_sum);
    const double grad_sumsq = chunk.opens_period ? 0 : Get<C>(chunk.scale_grad_sumsq);
    Set<C>(chunk.scale_grad_sum, grad_sum + grad);
    Set<C>(chunk.scale_grad_sumsq, fma(grad, grad, grad_sumsq));
    if (chunk.first_step || chunk.ends_period) Set<C>(chunk.param_rms, NewRms<C, S>(chunk));
    if (chunk.ends_period && !chunk.first_step) chunk.step[1] = one_minus_beta1 * Change(chunk);
    const double rms = Get<C>(chunk.param_rms);
    chunk.step[0] = chunk.rate * (rms < min_rms ? min_rms : rms);
  }

  // The growth of the parameter at the end of a period (a of scaled_adam.h).
  __device__ double Change(const ScaledAdamSizeChunk& chunk) const {
    const double beta = chunk.beta;
    Set<C>(chunk.scale_exp_avg_sq, beta * Get<C>(chunk.scale_exp_avg_sq) +
                                       (1 - beta) * Get<C>(chunk.scale_grad_sumsq) / period);
    double change = -size_lr * chunk.root * Get<C>(chunk.scale_grad_sum) /
                    (sqrt(Get<C>(chunk.scale_exp_avg_sq)) + eps);
    const double rms = Get<C>(chunk.param_rms);
    if (rms < min_rms) change = 0;
    if (icefall_2023) return rms > max_rms ? -size_lr * period : change;
    change = change < -0.1 ? -0.1 : change > 0.1 ? 0.1 : change;
    const double most = (max_rms - rms) / rms;
    return rms > 0 && most < change ? most : change;
  }
};

template <typename Body>
void ForEachChunk(const DeviceContext& context, const ScaledAdamSizeArgs& args, const Body& body) {
  ForEachTile(
      context, args.chunks, [](const ScaledAdamSizeChunk&) { return int64_t{1}; }, body);
}

}  // namespace

void scaled_adam_shares(const DeviceContext& context, const ScaledAdamSizeArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype,
                [&]<typename C, typename S>() { ForEachChunk(context, args, ShareBody<C, S>{}); });
}

void scaled_adam_sizes(const DeviceContext& context, const ScaledAdamSizeArgs& args) {
  DispatchStats(args.dtype, args.stat_dtype, [&]<typename C, typename S>() {
    ForEachChunk(context, args,
                 SizeBody<C, S>{args.gate, static_cast<double>(args.period), args.size_lr,
                                args.one_minus_beta1, args.eps, args.min_rms, args.max_rms,
                                args.icefall_2023});
  });
}

}  // namespace apogee::optim::cuda
