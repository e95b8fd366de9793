// SPDX-License-Identifier: Apache-2.0

// The optimizers that gpu_bench measures, with the memory traffic of each kernel of a step.
//
//   for (const OptimizerRow& row : OptimizerRows()) {
//     const auto optimizer = MakeOptimizer(row, params);
//     optimizer->step();                                  // row.kernels, in this order
//   }
//
// Bytes are per parameter. f32: weights, gradients and states of 4 bytes. bf16: weights and
// gradients of 2 bytes, f32 masters and states. Statistics of rows, columns and tensors are small
// against them and do not count.
#ifndef APOGEE_BENCH_GPU_OPTIMIZER_ROWS_H_
#define APOGEE_BENCH_GPU_OPTIMIZER_ROWS_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/optim/options.h"

namespace apogee::bench {

struct OptimizerKernel {
  const char* name;  // of the slot of optim/core/kernels.h
  double bytes_f32, bytes_bf16;
  double bytes(DType dtype) const { return dtype == DType::kF32 ? bytes_f32 : bytes_bf16; }
};
struct OptimizerRow {
  std::string label, name;
  optim::OptionMap options;
  std::vector<OptimizerKernel> kernels;
  // Clipping reads the gradients once more, in a kernel that is no slot: it only has whole steps.
  double max_norm = 0;
  double bytes(DType dtype) const;
};
const std::vector<OptimizerRow>& OptimizerRows();

std::unique_ptr<optim::Optimizer> MakeOptimizer(const OptimizerRow& row,
                                                const std::vector<autograd::ParameterPtr>& params);

// About `budget` parameters with gradients, like those of a GPT: per layer weights of twelve d x d
// blocks, and vectors.
std::vector<autograd::ParameterPtr> MakeParameters(int64_t budget, DType dtype,
                                                   const ContextPtr& context);
int64_t Numel(const std::vector<autograd::ParameterPtr>& params);

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_GPU_OPTIMIZER_ROWS_H_
