#include "apogee/tensor/cuda/kernel_table.h"

#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr KernelTable MakeTable() {
  KernelTable table;
  table.attention_backward = &cuda::attention_backward;
  table.attention_forward = &cuda::attention_forward;
  table.binary = &cuda::binary;
  table.fill = &cuda::fill;
  table.matmul = &cuda::matmul;
  table.scale_add = &cuda::scale_add;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CudaKernelTable() { return kTable; }

}  // namespace apogee::cuda
