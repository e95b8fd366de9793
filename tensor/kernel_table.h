// SPDX-License-Identifier: Apache-2.0

// The kernels of one backend: a constant table of typed slots, one per op.
//
// An op calls `context.kernels().softmax_forward(context, args)`. A kernel of the wrong signature
// does not compile; an empty slot throws "softmax_forward: no kernel for cuda:0". The backends'
// tables are constants (tensor/cpu/kernel_table.cc): nothing is registered when a program starts.
// The CPU and CUDA tables fill every slot of the list below, so a kernel that one of them lacks is
// a link error. To add an op, see docs/adding_an_op.md.
#ifndef APOGEE_TENSOR_KERNEL_TABLE_H_
#define APOGEE_TENSOR_KERNEL_TABLE_H_

#include "apogee/core/device_context.h"
#include "apogee/core/error.h"
#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/kernels/attention_args.h"
#include "apogee/tensor/kernels/block_codes.h"
#include "apogee/tensor/kernels/conv_args.h"
#include "apogee/tensor/kernels/elementwise_args.h"
#include "apogee/tensor/kernels/float8_args.h"
#include "apogee/tensor/kernels/recurrent_args.h"
#include "apogee/tensor/kernels/reduce_args.h"
#include "apogee/tensor/kernels/work.h"

namespace apogee {

template <typename Args>
class KernelSlot {
 public:
  using Function = void (*)(const DeviceContext&, const Args&);

  constexpr explicit KernelSlot(const char* name) : name_(name) {}
  constexpr KernelSlot& operator=(Function function) {
    function_ = function;
    return *this;
  }

  void operator()(const DeviceContext& context, const Args& args) const {
    APOGEE_CHECK(function_ != nullptr, name_, ": no kernel for ", context.device().ToString());
    function_(context, args);
    if (KernelListener* listener = context.kernel_listener()) {
      listener->OnKernel(WorkOf(name_, args));
    }
  }
  const char* name() const { return name_; }
  bool filled() const { return function_ != nullptr; }

 private:
  const char* name_;
  Function function_ = nullptr;
};

// X(slot name, argument type), one line per kernel.
#define APOGEE_FOR_EACH_KERNEL(X)                            \
  X(fill, FillArgs)                                          \
  X(copy, CopyArgs)                                          \
  X(binary, BinaryArgs)                                      \
  X(scale_add, ScaleAddArgs)                                 \
  X(unary_forward, UnaryForwardArgs)                         \
  X(unary_backward, UnaryBackwardArgs)                       \
  X(where, WhereArgs)                                        \
  X(activation_forward, ActivationForwardArgs)               \
  X(activation_backward, ActivationBackwardArgs)             \
  X(gated_forward, GatedForwardArgs)                         \
  X(gated_backward, GatedBackwardArgs)                       \
  X(dropout, DropoutArgs)                                    \
  X(random, RandomArgs)                                      \
  X(sum, SumArgs)                                            \
  X(extreme, ExtremeArgs)                                    \
  X(statistic_forward, StatisticForwardArgs)                 \
  X(statistic_backward, StatisticBackwardArgs)               \
  X(cum_sum, CumSumArgs)                                     \
  X(gather, GatherArgs)                                      \
  X(scatter_add, ScatterAddArgs)                             \
  X(softmax_forward, SoftmaxForwardArgs)                     \
  X(softmax_backward, SoftmaxBackwardArgs)                   \
  X(norm_forward, NormForwardArgs)                           \
  X(norm_backward, NormBackwardArgs)                         \
  X(rotary, RotaryArgs)                                      \
  X(gru_cell_forward, GruCellForwardArgs)                    \
  X(gru_cell_backward, GruCellBackwardArgs)                  \
  X(lstm_cell_forward, LstmCellForwardArgs)                  \
  X(lstm_cell_backward, LstmCellBackwardArgs)                \
  X(embedding_forward, EmbeddingForwardArgs)                 \
  X(embedding_backward, EmbeddingBackwardArgs)               \
  X(matmul, MatMulArgs)                                      \
  X(matmul_activation, MatMulActivationArgs)                 \
  X(matmul_group, MatMulGroupArgs)                           \
  X(unfold, UnfoldArgs)                                      \
  X(fold, FoldArgs)                                          \
  X(conv_forward, ConvForwardArgs)                           \
  X(conv_backward_input, ConvBackwardInputArgs)              \
  X(conv_backward_weight, ConvBackwardWeightArgs)            \
  X(max_pool_forward, MaxPoolForwardArgs)                    \
  X(average_pool_forward, AveragePoolForwardArgs)            \
  X(average_pool_backward, AveragePoolBackwardArgs)          \
  X(attention_forward, AttentionForwardArgs)                 \
  X(attention_backward, AttentionBackwardArgs)               \
  X(attention_merge, AttentionMergeArgs)                     \
  X(cross_entropy_forward, CrossEntropyForwardArgs)          \
  X(cross_entropy_backward, CrossEntropyBackwardArgs)        \
  X(cross_entropy_part_forward, CrossEntropyPartForwardArgs) \
  X(cross_entropy_part_sums, CrossEntropyPartSumsArgs)       \
  X(cross_entropy_part_join, CrossEntropyPartJoinArgs)       \
  X(block_decode, DecodeBlocksArgs)                          \
  X(float8_encode, Float8EncodeArgs)                         \
  X(float8_decode, Float8DecodeArgs)                         \
  X(float8_scale, Float8ScaleArgs)

struct KernelTable {
#define APOGEE_DECLARE_SLOT(name, Args) KernelSlot<Args> name{#name};
  APOGEE_FOR_EACH_KERNEL(APOGEE_DECLARE_SLOT)
#undef APOGEE_DECLARE_SLOT
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNEL_TABLE_H_
