// SPDX-License-Identifier: Apache-2.0

// Cross entropy of logits whose columns are split into parts (tensor parallelism), without
// gathering the logits. It takes three steps; between them the caller reduces statistics of shape
// [rows] over the parts.
//
//   CrossEntropyPart part = ops::CrossEntropyPartForward(logits, targets, vocab, ignore_index);
//   Tensor max = part.lse.Clone();                       // then its maximum over the parts
//   ops::CrossEntropyPartSums(part, max);                // then part.packed's sum over the parts
//   CrossEntropyResult whole = ops::CrossEntropyPartJoin(part, max, targets, ignore_index);
//
// Shapes:
//   logits      [.., V_part], the columns from vocab.first on. Columns from vocab.vocab_size on are
//               padding and are left out.
//   targets     i64 [..], each in [0, vocab_size) or ignore_index; the same on every rank
//   statistics  f32 (f64 for f64)
// A single part gives the same bits as CrossEntropyForward.
#ifndef APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_
#define APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_

#include "apogee/tensor/ops/nn.h"

namespace apogee::ops {

struct CrossEntropyPart {
  Tensor lse;     // [rows]: the log-sum-exp of this part's columns
  Tensor packed;  // [2, rows]: sums of exponentials (filled by CrossEntropyPartSums), target logits
};

// Throws Error for a target outside the vocabulary. Every rank has the same targets, so all throw.
CrossEntropyPart CrossEntropyPartForward(const Tensor& logits, const Tensor& targets,
                                         const VocabPart& vocab, int64_t ignore_index,
                                         double label_smoothing = 0);
// `max` [rows]: the largest lse of all parts.
void CrossEntropyPartSums(const CrossEntropyPart& part, const Tensor& max);
// Needs part.packed summed over the parts. Writes each row's loss, 0 if its target is ignored, to
// `row_loss` [rows]. Returns the log-sum-exp of the whole rows.
Tensor CrossEntropyPartRows(const CrossEntropyPart& part, const Tensor& max, const Tensor& targets,
                            int64_t ignore_index, const Tensor& row_loss);
// The same; returns the loss, and the log-sum-exp of the whole rows.
// Reads the targets on the host, which waits for a GPU.
CrossEntropyResult CrossEntropyPartJoin(const CrossEntropyPart& part, const Tensor& max,
                                        const Tensor& targets, int64_t ignore_index);
// This part's columns of the result of CrossEntropyBackward, and 0 in padding. `lse` is that of the
// whole rows. Overwrites the logits if nothing else owns them.
Tensor CrossEntropyPartBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                                const VocabPart& vocab, int64_t ignore_index, const Tensor& grad,
                                int64_t num_targets, double label_smoothing = 0);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_
