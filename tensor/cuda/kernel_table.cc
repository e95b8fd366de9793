#include "apogee/tensor/cuda/kernel_table.h"

#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

constexpr KernelTable MakeTable() {
  KernelTable table;
  table.attention_merge = &cuda::attention_merge;
  table.attention_backward = &cuda::attention_backward;
  table.attention_forward = &cuda::attention_forward;
  table.binary = &cuda::binary;
  table.cross_entropy_backward = &cuda::cross_entropy_backward;
  table.cross_entropy_forward = &cuda::cross_entropy_forward;
  table.cross_entropy_part_forward = &cuda::cross_entropy_part_forward;
  table.cross_entropy_part_join = &cuda::cross_entropy_part_join;
  table.cross_entropy_part_sums = &cuda::cross_entropy_part_sums;
  table.fill = &cuda::fill;
  table.norm_backward = &cuda::norm_backward;
  table.norm_forward = &cuda::norm_forward;
  table.copy = &cuda::copy;
  table.matmul = &cuda::matmul;
  table.scale_add = &cuda::scale_add;
  table.softmax_backward = &cuda::softmax_backward;
  table.softmax_forward = &cuda::softmax_forward;
  table.activation_backward = &cuda::activation_backward;
  table.activation_forward = &cuda::activation_forward;
  table.dropout = &cuda::dropout;
  table.embedding_backward = &cuda::embedding_backward;
  table.embedding_forward = &cuda::embedding_forward;
  table.random = &cuda::random;
  table.rotary = &cuda::rotary;
  table.sum = &cuda::sum;
  table.swiglu_backward = &cuda::swiglu_backward;
  table.swiglu_forward = &cuda::swiglu_forward;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& CudaKernelTable() { return kTable; }

}  // namespace apogee::cuda
