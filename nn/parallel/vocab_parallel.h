// SPDX-License-Identifier: Apache-2.0

// Embedding and cross entropy with the vocabulary sharded over the ranks of a group: no rank ever
// has the whole table or the whole logits.
//
//   const ops::VocabPart part{.first = rank * V_local, .vocab_size = 50257};
//   Tensor x = VocabParallelEmbedding(tokens, table_local, part, group);       // [B, T, d]
//   Tensor logits = autograd::Linear(CopyToGroup(h, group), table_local, {});  // [B, T, V_local]
//   Tensor loss = VocabParallelCrossEntropy(logits, targets, part, group);
//
// A rank holds ids [first, first + V_local). Rows for ids from vocab_size on are padding (shard.h
// makes such parts); a rank may hold nothing but padding. The parts must not overlap and must
// together cover the vocabulary. Every rank of the group must call, with the same ids and targets;
// the calls wait for their collectives. An id or target outside the vocabulary throws Error on
// every rank. A null group is one rank.
#ifndef APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_
#define APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// ids i64 of any shape, table [V_local, d] -> [.., d], replicated: one all-reduce of the result.
// The table's gradient is local and dense; lookups of padding_id, an id of the whole vocabulary,
// add nothing to it (-1: there is none).
Tensor VocabParallelEmbedding(const Tensor& ids, const Tensor& table, const ops::VocabPart& part,
                              const comm::GroupPtr& group, int64_t padding_id = -1);

// The same for sharded sequences: ids [B, T / n] and the result are this rank's tokens. One
// all-gather of the ids and one reduce-scatter of the result.
Tensor VocabParallelEmbeddingOfTokens(const Tensor& ids, const Tensor& table,
                                      const ops::VocabPart& part, const comm::GroupPtr& group,
                                      int64_t padding_id = -1);

// logits [.., V_local], targets i64 [..] -> a scalar, replicated: the mean over the targets other
// than `ignore_index`, as autograd::CrossEntropy. Forward all-reduces per-row statistics in f32
// (f64 for f64): a maximum, then a packed pair of sums. Backward communicates nothing. It writes
// the gradient over the logits if nothing else owns their memory; padding columns get zeros.
Tensor VocabParallelCrossEntropy(const Tensor& logits, const Tensor& targets,
                                 const ops::VocabPart& part, const comm::GroupPtr& group,
                                 int64_t ignore_index = -100, double label_smoothing = 0);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_VOCAB_PARALLEL_H_
