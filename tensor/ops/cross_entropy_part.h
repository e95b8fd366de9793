// SPDX-License-Identifier: Apache-2.0

// Cross entropy of logits whose columns are cut into parts, without the whole logits: three steps,
// between which the caller reduces [rows] statistics over the parts.
//
//   CrossEntropyPart part = ops::CrossEntropyPartForward(logits, targets, vocab, ignore_index);
//   Tensor max = part.lse.Clone();                       // then its maximum over the parts
//   ops::CrossEntropyPartSums(part, max);                // then part.packed's sum over the parts
//   CrossEntropyResult whole = ops::CrossEntropyPartJoin(part, max, targets, ignore_index);
//
// Shapes: logits [.., V_part] (the columns from vocab.first on; those beyond vocab.vocab_size are
// padding and take no part), targets i64 [..] in [0, vocab_size) or ignore_index. Statistics are
// f32 (f64 for f64). A single part gives the bits of CrossEntropyForward.
#ifndef APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_
#define APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_

#include "apogee/tensor/ops/nn.h"

namespace apogee::ops {

struct CrossEntropyPart {
  Tensor lse;     // [rows], of this part's columns
  Tensor packed;  // [2, rows]: sums of exponentials (from CrossEntropyPartSums on), target logits
};

// Throws Error for a target outside the vocabulary, on every rank alike.
CrossEntropyPart CrossEntropyPartForward(const Tensor& logits, const Tensor& targets,
                                         const VocabPart& vocab, int64_t ignore_index);
// `max` [rows]: the largest lse of any part.
void CrossEntropyPartSums(const CrossEntropyPart& part, const Tensor& max);
// The loss, and the log-sum-exp of the whole rows.
CrossEntropyResult CrossEntropyPartJoin(const CrossEntropyPart& part, const Tensor& max,
                                        const Tensor& targets, int64_t ignore_index);
// This part's columns of what CrossEntropyBackward computes, `lse` being the whole rows'; 0 in
// padding. Overwrites logits when nothing else owns them.
Tensor CrossEntropyPartBackward(Tensor logits, const Tensor& targets, const Tensor& lse,
                                const VocabPart& vocab, int64_t ignore_index, const Tensor& grad,
                                int64_t num_targets);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_CROSS_ENTROPY_PART_H_
