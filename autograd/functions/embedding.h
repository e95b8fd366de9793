// SPDX-License-Identifier: Apache-2.0

// Rows of a table by index.
//
//   // tokens i64 [B, T], table [V, d] -> x [B, T, d]
//   Tensor x = autograd::Embedding(tokens, table);
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_

#include <optional>

#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// Throws Error for an id outside [0, V). The gradient is dense and summed in a fixed order.
// With `part`, the table is only that part of a vocabulary: ids of other parts give zeros and no
// gradient. Ids on a GPU are fetched to be checked, which waits for them.
Tensor Embedding(const Tensor& ids, const Tensor& table,
                 const std::optional<ops::VocabPart>& part = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
