// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/cross_entropy_part.h"

#include <algorithm>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::ops {
namespace {

// Columns of the logits that are in the vocabulary.
int64_t NumColumns(const Tensor& logits, const VocabPart& vocab) {
  return std::clamp<int64_t>(vocab.vocab_size - vocab.first, 0, logits.size(-1));
}

}  // namespace

CrossEntropyPart CrossEntropyPartForward(const Tensor& logits_in, const Tensor& targets_in,
                                         const VocabPart& vocab, int64_t ignore_index,
                                         double label_smoothing) {
  const Tensor logits = Operand("cross_entropy_part", "logits", logits_in);
  const Tensor targets = Operand("cross_entropy_part", "targets", targets_in);
  const int64_t rows = Rows(logits);
  APOGEE_CHECK(targets.numel() == rows, "cross_entropy_part: targets ", targets.shape(),
               " for logits ", logits.shape());
  CheckIndices("cross_entropy_part", targets, logits, vocab.vocab_size, &ignore_index);
  const DType stat = ComputeDType(logits.dtype());
  CrossEntropyPart part{Tensor::Empty({rows}, stat, logits.context()),
                        Tensor::Empty({2, rows}, stat, logits.context())};
  const int64_t cols = NumColumns(logits, vocab);
  logits.context()->kernels().cross_entropy_part_forward(
      *logits.context(), {.dtype = logits.dtype(),
                          .logits = logits.raw(),
                          .targets = targets.address<int64_t>(),
                          .lse = part.lse.raw(),
                          .target_logits = part.packed.Slice(0, 1, 1).raw(),
                          .rows = rows,
                          .cols = cols,
                          .first = vocab.first,
                          .padding = logits.size(-1) - cols,
                          .labels = {label_smoothing, vocab.vocab_size}});
  return part;
}

void CrossEntropyPartSums(const CrossEntropyPart& part, const Tensor& max) {
  CheckSameDType("cross_entropy_part", part.lse, max);
  CheckSameShape("cross_entropy_part", part.lse, max);
  part.lse.context()->kernels().cross_entropy_part_sums(*part.lse.context(),
                                                        {.dtype = part.lse.dtype(),
                                                         .lse = part.lse.raw(),
                                                         .max = max.raw(),
                                                         .sums = part.packed.raw(),
                                                         .rows = part.lse.numel()});
}

Tensor CrossEntropyPartRows(const CrossEntropyPart& part, const Tensor& max,
                            const Tensor& targets_in, int64_t ignore_index,
                            const Tensor& row_loss) {
  const Tensor targets = Operand("cross_entropy_part", "targets", targets_in);
  CheckSameDevice("cross_entropy_part", targets, max);
  CheckSameDType("cross_entropy_part", row_loss, max);
  CheckSameShape("cross_entropy_part", row_loss, max);
  const Tensor lse = Tensor::EmptyLike(max);
  max.context()->kernels().cross_entropy_part_join(
      *max.context(), {.dtype = max.dtype(),
                       .max = max.raw(),
                       .sums = part.packed.raw(),
                       .target_logits = part.packed.Slice(0, 1, 1).raw(),
                       .targets = targets.address<int64_t>(),
                       .ignore_index = ignore_index,
                       .lse = lse.raw(),
                       .loss = row_loss.raw(),
                       .rows = part.lse.numel()});
  return lse;
}

CrossEntropyResult CrossEntropyPartJoin(const CrossEntropyPart& part, const Tensor& max,
                                        const Tensor& targets, int64_t ignore_index) {
  const Tensor row_loss = Tensor::EmptyLike(max);
  CrossEntropyResult result{Tensor(),
                            CrossEntropyPartRows(part, max, targets, ignore_index, row_loss), 0};
  result.num_targets = CountOthers(targets.Contiguous().ToHost(), ignore_index);
  result.loss = SumLeading(row_loss, 0, max.dtype(), 1.0 / static_cast<double>(result.num_targets));
  return result;
}

Tensor CrossEntropyPartBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                                const VocabPart& vocab, int64_t ignore_index, const Tensor& grad,
                                int64_t num_targets, double label_smoothing) {
  const Tensor dlogits = logits.is_sole_owner() ? logits : Tensor::EmptyLike(logits);
  const int64_t cols = NumColumns(logits, vocab);
  logits.context()->kernels().cross_entropy_backward(
      *logits.context(), {.dtype = logits.dtype(),
                          .logits = logits.raw(),
                          .targets = targets.address<int64_t>(),
                          .ignore_index = ignore_index,
                          .lse = lse.raw(),
                          .dlogits = dlogits.raw(),
                          .rows = Rows(logits),
                          .cols = cols,
                          .num_targets = static_cast<double>(num_targets),
                          .first = vocab.first,
                          .padding = logits.size(-1) - cols,
                          .grad = ScalarOperand("cross_entropy", grad),
                          .labels = {label_smoothing, vocab.vocab_size}});
  return dlogits;
}

}  // namespace apogee::ops
