#include "apogee/optim/cuda/kernel_table.h"

#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim {
namespace {

constexpr OptimKernels MakeTable() {
  OptimKernels table;
  table.adafactor = &cuda::adafactor;
  table.adafactor_square_sums = &cuda::adafactor_square_sums;
  table.adafactor_update_sum = &cuda::adafactor_update_sum;
  table.adalomo = &cuda::adalomo;
  table.adalomo_sums = &cuda::adalomo_sums;
  table.adalomo_update_norm = &cuda::adalomo_update_norm;
  table.adam = &cuda::adam;
  table.adam8 = &cuda::adam8;
  table.adam8_absmax = &cuda::adam8_absmax;
  table.blend = &cuda::blend;
  table.came = &cuda::came;
  table.came_residual_sums = &cuda::came_residual_sums;
  table.dequantize = &cuda::dequantize;
  table.dots = &cuda::dots;
  table.factor_moments = &cuda::factor_moments;
  table.frozen_adam = &cuda::frozen_adam;
  table.grad_norm = &cuda::grad_norm;
  table.grad_scale = &cuda::grad_scale;
  table.lamb = &cuda::lamb;
  table.lamb_sums = &cuda::lamb_sums;
  table.lars = &cuda::lars;
  table.lars_sums = &cuda::lars_sums;
  table.lion = &cuda::lion;
  table.local_step = &cuda::local_step;
  table.lomo = &cuda::lomo;
  table.low_rank_update = &cuda::low_rank_update;
  table.onebit_lamb = &cuda::onebit_lamb;
  table.onebit_lamb_sums = &cuda::onebit_lamb_sums;
  table.quantize = &cuda::quantize;
  table.scaled_adam = &cuda::scaled_adam;
  table.sgd = &cuda::sgd;
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& CudaOptimKernels() { return kTable; }

}  // namespace apogee::optim
