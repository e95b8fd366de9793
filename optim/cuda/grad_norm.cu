#include "apogee/optim/cuda/kernels.h"
#include "apogee/optim/cuda/norm_terms.cuh"

namespace apogee::optim::cuda {
namespace {

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
