#include "apogee/optim/cuda/kernel_table.h"

#include "apogee/optim/cuda/kernels.h"

namespace apogee::optim {
namespace {

constexpr OptimKernels MakeTable() {
  OptimKernels table;
  table.adam = &cuda::adam;
  table.grad_norm = &cuda::grad_norm;
  table.grad_scale = &cuda::grad_scale;
  table.lion = &cuda::lion;
  table.lomo = &cuda::lomo;
  table.sgd = &cuda::sgd;
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& CudaOptimKernels() { return kTable; }

}  // namespace apogee::optim
