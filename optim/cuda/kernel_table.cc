#include "apogee/optim/cuda/kernel_table.h"

#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim {
namespace {

constexpr OptimKernels MakeTable() {
  OptimKernels table;
  table.adalomo = &cuda::adalomo;
  table.adalomo_sums = &cuda::adalomo_sums;
  table.adalomo_update_norm = &cuda::adalomo_update_norm;
  table.adam = &cuda::adam;
  table.dots = &cuda::dots;
  table.grad_norm = &cuda::grad_norm;
  table.grad_scale = &cuda::grad_scale;
  table.lamb = &cuda::lamb;
  table.lamb_sums = &cuda::lamb_sums;
  table.lars = &cuda::lars;
  table.lars_sums = &cuda::lars_sums;
  table.lion = &cuda::lion;
  table.lomo = &cuda::lomo;
  table.scaled_adam = &cuda::scaled_adam;
  table.sgd = &cuda::sgd;
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& CudaOptimKernels() { return kTable; }

}  // namespace apogee::optim
