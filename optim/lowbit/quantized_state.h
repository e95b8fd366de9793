// SPDX-License-Identifier: Apache-2.0

// QuantizedState: a state of 8-bit codes with one scale per block of the logical tensor. It takes
// about one byte per element instead of four.
//
//   specs.push_back({"exp_avg", StateKind::kCodes});
//   specs.push_back({"exp_avg_absmax", StateKind::kBlockScale, BlockScaleShape(numel, 256)});
//   ...
//   QuantizedState state(view.state("exp_avg"), view.state("exp_avg_absmax"),
//                        CodeMap::Signed(), /*block=*/256);
//   Tensor values = state.Dequantize(DType::kF32);
//   state.Quantize(values);
//
// Element i of the tensor is in block i / block; block 0 means one scale for the whole tensor.
// Bytes for n elements: n + 4 ceil(n / block). A block of zeros has scale 0 and the codes of zero.
// An update kernel that decodes and encodes itself reads codes() and scales() directly (AdamW8bit
// does).
#ifndef APOGEE_OPTIM_LOWBIT_QUANTIZED_STATE_H_
#define APOGEE_OPTIM_LOWBIT_QUANTIZED_STATE_H_

#include <utility>

#include "apogee/optim/lowbit/code_map.h"
#include "apogee/tensor/tensor.h"

namespace apogee::optim {

inline int64_t NumBlocks(int64_t numel, int64_t block) {
  return block == 0 ? 1 : (numel + block - 1) / block;
}
inline Shape BlockScaleShape(int64_t numel, int64_t block) { return {NumBlocks(numel, block)}; }

class QuantizedState {
 public:
  // `codes`: the u8 codes of a whole tensor. `scales`: one per block. Keeps handles, not copies,
  // and a reference to `map`. Throws Error if the sizes do not match.
  QuantizedState(Tensor codes, Tensor scales, const CodeMap& map, int64_t block);

  const Tensor& codes() const { return codes_; }
  const Tensor& scales() const { return scales_; }

  // Returns the values in `dtype` (f32 or f64), shaped like the codes.
  Tensor Dequantize(DType dtype) const;
  // Encodes `values` (f32 or f64, contiguous): first the scales, then the nearest codes.
  void Quantize(const Tensor& values) const;

 private:
  Tensor codes_, scales_;
  const CodeMap& map_;
  int64_t block_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWBIT_QUANTIZED_STATE_H_
