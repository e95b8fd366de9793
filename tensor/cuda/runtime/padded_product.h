// SPDX-License-Identifier: Apache-2.0

// Products of operands whose rows are not aligned: logits of 50257 tokens, for example. The fast
// algorithms of cuBLASLt need rows that begin at multiples of 16 bytes; without them it takes slow
// ones, or has none. So the product runs on copies with longer rows. Its sizes stay the same, and
// the elements between the rows are never read. Private to tensor/cuda.
//
//   if (const PaddedOperands which = OperandsToPad(args, kUsesThatPay); which.any()) {
//     return MatMulPadded(context, args, which, [&](const MatMulArgs& part) { ... });
//   }
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_PADDED_PRODUCT_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_PADDED_PRODUCT_H_

#include <cstdint>
#include <functional>

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

struct PaddedOperands {
  bool a = false, b = false, c = false;
  bool any() const { return a || b || c; }
};

// A copy reads and writes 4 bytes per element, which takes a GPU as long as about 150 uses of the
// element by tensor cores; without the copy these would take several times as long.
inline constexpr int64_t kUsesThatPay = 128;
// The most bytes of a product's copies of a and c at a time (but at least 128 rows of c).
inline constexpr int64_t kMaxPaddedBytes = int64_t{512} << 20;

// The operands that are not aligned and of whose elements the product uses each at least
// `min_uses` times. None for products of f32 and f64, which run without tensor cores.
PaddedOperands OperandsToPad(const MatMulArgs& args, int64_t min_uses);

// Calls multiply with products that have aligned copies in place of the operands `which`, and
// copies the results back. A product without a batch whose copies of a and c exceed max_bytes is
// split by rows of c: one call per part. b, and all of a batched product, are copied whole. Every
// size must be > 0.
void MatMulPadded(const DeviceContext& context, const MatMulArgs& args, const PaddedOperands& which,
                  const std::function<void(const MatMulArgs&)>& multiply,
                  int64_t max_bytes = kMaxPaddedBytes);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_PADDED_PRODUCT_H_
