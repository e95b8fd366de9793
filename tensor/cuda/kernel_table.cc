#include "apogee/tensor/cuda/kernel_table.h"

#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr KernelTable MakeTable() {
  KernelTable table;
  table.activation_backward = &cuda::activation_backward;
  table.activation_forward = &cuda::activation_forward;
  table.binary = &cuda::binary;
  table.copy = &cuda::copy;
  table.dropout = &cuda::dropout;
  table.embedding_backward = &cuda::embedding_backward;
  table.embedding_forward = &cuda::embedding_forward;
  table.fill = &cuda::fill;
  table.random = &cuda::random;
  table.rotary = &cuda::rotary;
  table.scale_add = &cuda::scale_add;
  table.sum = &cuda::sum;
  table.swiglu_backward = &cuda::swiglu_backward;
  table.swiglu_forward = &cuda::swiglu_forward;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CudaKernelTable() { return kTable; }

}  // namespace apogee::cuda
