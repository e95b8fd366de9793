// SPDX-License-Identifier: Apache-2.0

// Weights in 4 or 8 bits (tensor/kernels/block_codes.h). No gradient is recorded here.
//
//   const BlockCodes codes{.numel = weight.numel()};
//   Tensor bytes = ops::EncodeBlocks(weight, codes);                       // u8 [codes.bytes()]
//   Tensor again = ops::DecodeBlocks(bytes, codes, {}, weight.shape(), DType::kBF16);
#ifndef APOGEE_TENSOR_OPS_BLOCK_CODES_H_
#define APOGEE_TENSOR_OPS_BLOCK_CODES_H_

#include <span>

#include "apogee/tensor/kernels/block_codes.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// The first element, in the flat order, that is infinite or NaN; -1 if there is none. A dry context
// has none.
int64_t FirstNonFinite(const Tensor& value);

// Encodes a float tensor on the host; the result is in its context, of parameter memory. f64 is
// rounded to f32 before. Throws Error for values that are not finite.
Tensor EncodeBlocks(const Tensor& value, const BlockCodes& codes);

// The elements of a flat tensor that some bytes hold. Undefined runs: all.
struct BlockPart {
  Tensor runs = {};  // i64 [runs, kBlockRunSize], in the bytes' context
  int64_t num_held = 0;
};
// `runs`: in ascending order of `out`, without gaps.
BlockPart MakeBlockPart(std::span<const BlockRun> runs, const ContextPtr& context);

// Decodes the elements of `part`. `shape`: of the result; elements behind the last one held are 0.
// The result is workspace memory.
Tensor DecodeBlocks(const Tensor& bytes, const BlockCodes& codes, const BlockPart& part,
                    const Shape& shape, DType dtype);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_BLOCK_CODES_H_
