// SPDX-License-Identifier: Apache-2.0

// Reads and sums by index.
//
//   // tokens i64 [B, T], table [V, d] -> x [B, T, d]
//   Tensor x = autograd::Embedding(tokens, table);
//   // log_probs [batch, classes], labels i64 [batch, 1] -> [batch, 1]
//   Tensor chosen = autograd::Gather(log_probs, 1, labels);
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_

#include <optional>

#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// Throws Error for an id outside [0, V). The gradient is dense and summed in a fixed order.
// With `part`, the table is only that part of a vocabulary: ids of other parts give zeros and no
// gradient. Ids on a GPU are fetched to be checked, which waits for them.
// Ids equal to padding_id, of the whole vocabulary, give the table no gradient; -1: there is none.
Tensor Embedding(const Tensor& ids, const Tensor& table,
                 const std::optional<ops::VocabPart>& part = {}, int64_t padding_id = -1);

// An index below is i64 and has x's rank. Along other dims than `dim` its size is x's, or 1 if it
// is the same for all. A value outside of x's dim throws Error with the value and its place; the
// host checks this, and waits for a GPU. Sums of gradients have one order: the bits are the same in
// every run.

// y[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`.
Tensor Gather(const Tensor& x, int dim, const Tensor& index);
// x[.., ids[j], ..] along `dim`; ids [n].
Tensor IndexSelect(const Tensor& x, int dim, const Tensor& ids);
// x, with source[.., j, ..] added to x[.., index[.., j, ..], ..] along `dim`. The source has x's
// shape, except along `dim`.
Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
