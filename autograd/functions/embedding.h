// SPDX-License-Identifier: Apache-2.0

// Rows of a table by index.
//
//   Tensor x = autograd::Embedding(tokens, table);      // tokens i64 [B, T], table [V, d] -> [B,
//   T, d]
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_

#include <optional>

#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// Throws Error for an index outside [0, V). The gradient is dense, summed in a fixed order. With
// `part`, the table is that part of a vocabulary: ids of other parts give zeros and no gradient.
Tensor Embedding(const Tensor& ids, const Tensor& table,
                 const std::optional<ops::VocabPart>& part = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
