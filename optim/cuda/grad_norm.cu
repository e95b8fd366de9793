// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/norm_terms.cuh"
#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim::cuda {
namespace {

template <NormKind kKind, typename Op>
void RunGradNorm(const DeviceContext& context, const NormArgs& args) {
  const std::vector<double> totals =
      ReduceToHost<1, Op, NormChunk>(context, args.chunks, NormTerms<kKind>{});
  for (size_t i = 0; i < totals.size(); ++i) args.chunks[i].result = totals[i];
}

template <typename S>
struct StoreSum {
  __device__ void operator()(const SquareSumChunk& chunk, int64_t,
                             const double (&totals)[1]) const {
    *static_cast<S*>(chunk.sum) = static_cast<S>(totals[0]);
  }
};

}  // namespace

void grad_norm(const DeviceContext& context, const NormArgs& args) {
  switch (args.kind) {
    case NormKind::kL2:
      return RunGradNorm<NormKind::kL2, Sum>(context, args);
    case NormKind::kL1:
      return RunGradNorm<NormKind::kL1, Sum>(context, args);
    case NormKind::kMax:
      return RunGradNorm<NormKind::kMax, Max>(context, args);
  }
}

void square_sums(const DeviceContext& context, const SquareSumArgs& args) {
  const NormTerms<NormKind::kL2> squares;
  if (args.stat_dtype == DType::kF64) {
    ReduceChunks<1, Sum>(context, args.chunks, squares, StoreSum<double>{});
  } else {
    ReduceChunks<1, Sum>(context, args.chunks, squares, StoreSum<float>{});
  }
}

}  // namespace apogee::optim::cuda
