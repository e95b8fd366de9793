// SPDX-License-Identifier: Apache-2.0

// Embedding and cross entropy over a vocabulary that is cut over the ranks of a group: neither the
// whole table nor the whole logits exist anywhere.
//
//   const ops::VocabPart part{.first = rank * V_local, .vocab_size = 50257};
//   Tensor x = VocabParallelEmbedding(tokens, table_local, part, group);       // [B, T, d]
//   Tensor logits = autograd::Linear(CopyToGroup(h, group), table_local, {});  // [B, T, V_local]
//   Tensor loss = VocabParallelCrossEntropy(logits, targets, part, group);
//
// A rank holds ids [first, first + V_local); what lies beyond vocab_size is padding (shard.h makes
// such parts). Parts must not overlap and together cover the vocabulary; V_local may be padding
// only. Every rank of the group must call, with the same ids and targets. Errors: apogee::Error, on
// every rank alike, for an id or target outside the vocabulary. A null group is one rank.
#ifndef APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_
#define APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// ids i64 of any shape, table [V_local, d] -> [.., d], replicated: one all-reduce of the result.
// The gradient of the table is local and dense.
Tensor VocabParallelEmbedding(const Tensor& ids, const Tensor& table, const ops::VocabPart& part,
                              const comm::GroupPtr& group);

// The same of ids [B, T / n] of which each rank holds its own: rows of these alone. One all-gather
// of the ids and one reduce-scatter.
Tensor VocabParallelEmbeddingOfTokens(const Tensor& ids, const Tensor& table,
                                      const ops::VocabPart& part, const comm::GroupPtr& group);

// logits [.., V_local], targets i64 [..] -> scalar, replicated: the mean over the targets that are
// not `ignore_index`, as autograd::CrossEntropy. Communicates statistics of [rows] in f32 (f64 for
// f64): a maximum and a packed pair of sums. Backward communicates nothing; it writes the gradient
// over the logits where nothing else owns them, zeros in padding columns.
Tensor VocabParallelCrossEntropy(const Tensor& logits, const Tensor& targets,
                                 const ops::VocabPart& part, const comm::GroupPtr& group,
                                 int64_t ignore_index = -100);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_
