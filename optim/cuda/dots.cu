#include "apogee/optim/cuda/kernels.h"
#include "apogee/optim/cuda/reduce.cuh"

namespace apogee::optim::cuda {
namespace {

template <typename C>
struct DotTerms {
  __device__ void operator()(const DotChunk& chunk, int64_t begin, int64_t end,
                             double (&sums)[3]) const {
    const C* weight = static_cast<const C*>(chunk.weight);
    ForEachPack<kReducePack>(begin, end, AreAligned(weight, chunk.grad), [&](const auto& at) {
      const Pack<C, kReducePack> w = at.template Load<C>(weight);
      const Pack<C, kReducePack> grad = LoadAs<C>(at, chunk.grad, chunk.grad_dtype);
#pragma unroll
      for (int k = 0; k < kReducePack; ++k) {
        const double x = w.at[k], g = grad.at[k];
        sums[0] += x * g;
        if (chunk.all) {
          sums[1] += g * g;
          sums[2] += x * x;
        }
      }
    });
  }
};

template <typename C>
void Run(const DeviceContext& context, const DotArgs& args) {
  const std::vector<double> totals =
      ReduceToHost<3, Sum, DotChunk>(context, args.chunks, DotTerms<C>{});
  for (size_t i = 0; i < args.chunks.size(); ++i) {
    DotChunk& chunk = args.chunks[i];
    chunk.weight_grad = totals[3 * i];
    chunk.grad_squares = totals[3 * i + 1];
    chunk.weight_squares = totals[3 * i + 2];
  }
}

}  // namespace

void dots(const DeviceContext& context, const DotArgs& args) {
  args.dtype == DType::kF64 ? Run<double>(context, args) : Run<float>(context, args);
}

}  // namespace apogee::optim::cuda
