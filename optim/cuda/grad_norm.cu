#include "apogee/optim/cuda/kernels.h"
#include "apogee/optim/cuda/reduce.cuh"

namespace apogee::optim::cuda {
namespace {

template <NormKind kKind>
struct NormTerms {
  __device__ void operator()(const NormChunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[1]) const {
    switch (chunk.grad_dtype) {
      case DType::kBF16:
        return Add<BFloat16>(chunk, begin, end, sums[0]);
      case DType::kF16:
        return Add<Float16>(chunk, begin, end, sums[0]);
      case DType::kF64:
        return Add<double>(chunk, begin, end, sums[0]);
      default:
        return Add<float>(chunk, begin, end, sums[0]);
    }
  }
  // Squares in f64, where those of all f32 are finite.
  template <typename T>
  static __device__ void Add(const NormChunk& chunk, int64_t begin, int64_t end, double& sum) {
    const T* grad = static_cast<const T*>(chunk.grad);
    ForEachPack<kReducePack>(begin, end, AreAligned(grad), [&](const auto& at) {
      const Pack<ComputeType<T>, kReducePack> pack = at.template Load<ComputeType<T>>(grad);
#pragma unroll
      for (int k = 0; k < kReducePack; ++k) {
        const double x = pack.at[k];
        if constexpr (kKind == NormKind::kL2) sum += x * x;
        if constexpr (kKind == NormKind::kL1) sum += fabs(x);
        if constexpr (kKind == NormKind::kMax) sum = Max()(sum, fabs(x));
      }
    });
  }
};

template <NormKind kKind, typename Op>
void Run(const DeviceContext& context, const NormArgs& args) {
  const std::vector<double> totals =
      ReduceToHost<1, Op, NormChunk>(context, args.chunks, NormTerms<kKind>{});
  for (size_t i = 0; i < totals.size(); ++i) args.chunks[i].result = totals[i];
}

}  // namespace

void grad_norm(const DeviceContext& context, const NormArgs& args) {
  switch (args.kind) {
    case NormKind::kL2:
      return Run<NormKind::kL2, Sum>(context, args);
    case NormKind::kL1:
      return Run<NormKind::kL1, Sum>(context, args);
    case NormKind::kMax:
      return Run<NormKind::kMax, Max>(context, args);
  }
}

}  // namespace apogee::optim::cuda
