// Rows of a table by index.
//
//   Tensor x = autograd::Embedding(tokens, table);      // tokens i64 [B, T], table [V, d] -> [B,
//   T, d]
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// Throws Error for an index outside [0, V). The gradient is dense, summed in a fixed order.
Tensor Embedding(const Tensor& ids, const Tensor& table);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_EMBEDDING_H_
