// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>

#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_loop.h"

namespace apogee::optim::cpu {
namespace {

template <typename C, typename S>
void Clip(const PercentileArgs& args, const PercentileChunk& chunk) {
  const double scale = args.grad_scale;
  const double squares = static_cast<double>(*static_cast<const S*>(chunk.squares)) * scale * scale;
  C* state = static_cast<C*>(chunk.history);
  double history[kNormHistory];
  std::copy(state, state + kNormHistory, history);
  if (chunk.step == 1) {
    std::ranges::fill(history, squares);
  } else {
    history[chunk.step % kNormHistory] = squares;
  }
  if (args.store) {
    std::ranges::transform(history, state, [](double x) { return static_cast<C>(x); });
  }
  std::ranges::sort(history);
  const double limit = std::sqrt(history[chunk.percentile]);
  const double norm = std::sqrt(squares);
  *chunk.gate = {};
  chunk.gate->grad_scale = norm > limit ? scale * limit / norm : scale;
}

}  // namespace

void percentile_clip(const DeviceContext&, const PercentileArgs& args) {
  for (const PercentileChunk& chunk : args.chunks) {
    DispatchStats(chunk.dtype, args.stat_dtype,
                  [&]<typename C, typename S>() { Clip<C, S>(args, chunk); });
  }
}

}  // namespace apogee::optim::cpu
