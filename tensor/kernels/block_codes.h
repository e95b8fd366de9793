// SPDX-License-Identifier: Apache-2.0

// BlockCodes: values in 4 or 8 bits, by blocks of 64 elements of a flat tensor, and where they are
// in the one run of bytes that holds them.
//
//   const BlockCodes codes{.kind = BlockCodeKind::kNf4, .nested = true, .numel = 4096};
//   codes.bytes();                     // of the whole: 0.52 per element
//   codes.code_begin();                // of the element codes
//
//   nf4    value = map[code] * scale       two codes per byte, the first in the high half; 16
//                                          values (Dettmers et al., "QLoRA", 2023)
//   int8   value = code * (scale / 127)    one code per byte, as i8
//
// The scale of a block is its largest magnitude. With `nested`, scales are codes themselves, by
// blocks of 256: scale = nested_map[code] * nested_scale + offset. All of it is in f32, without
// fused multiply-adds; a value is rounded once to its dtype. The numbers are those of bitsandbytes.
//
// The bytes, each section without gaps: tables (map, nested_map, offset), element codes, scales,
// and nested scales. Tables are a part of them, so that files with other maps keep theirs.
#ifndef APOGEE_TENSOR_KERNELS_BLOCK_CODES_H_
#define APOGEE_TENSOR_KERNELS_BLOCK_CODES_H_

#include <bit>
#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee {

struct BlockCodes {
  BlockCodeKind kind = BlockCodeKind::kNf4;
  bool nested = true;
  int64_t numel = 0;

  static constexpr int64_t kBlock = 64;         // elements per scale
  static constexpr int64_t kNestedBlock = 256;  // scales per nested scale
  static constexpr int64_t kMapSize = 16, kNestedMapSize = 256;

  constexpr int64_t codes_per_byte() const { return kind == BlockCodeKind::kNf4 ? 2 : 1; }
  constexpr int64_t scale_size() const { return nested ? 1 : 4; }
  constexpr int64_t num_blocks() const { return (numel + kBlock - 1) / kBlock; }
  constexpr int64_t num_nested_blocks() const {
    return nested ? (num_blocks() + kNestedBlock - 1) / kNestedBlock : 0;
  }
  // Where the sections begin, in bytes.
  constexpr int64_t map_begin() const { return 0; }
  constexpr int64_t nested_map_begin() const {
    return kind == BlockCodeKind::kNf4 ? 4 * kMapSize : 0;
  }
  constexpr int64_t offset_begin() const {
    return nested_map_begin() + (nested ? 4 * kNestedMapSize : 0);
  }
  constexpr int64_t code_begin() const { return offset_begin() + (nested ? 4 : 0); }
  constexpr int64_t scale_begin() const {
    return code_begin() + (numel + codes_per_byte() - 1) / codes_per_byte();
  }
  constexpr int64_t nested_begin() const { return scale_begin() + num_blocks() * scale_size(); }
  constexpr int64_t bytes() const { return nested_begin() + 4 * num_nested_blocks(); }
};

// Elements [first, first + length) of the flat tensor, which are consecutive in a local one, and
// the bytes that hold them: positions in the local bytes.
struct BlockRun {
  int64_t out = 0;  // local position of the first element
  int64_t first = 0, length = 0;
  int64_t code = 0;    // of the first element's code
  int64_t scale = 0;   // of its block's scale
  int64_t nested = 0;  // of its nested scale
};
inline constexpr int64_t kBlockRunSize = sizeof(BlockRun) / sizeof(int64_t);

APOGEE_HOST_DEVICE float LoadBytes(const uint8_t* at) {
  return std::bit_cast<float>(static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 |
                              static_cast<uint32_t>(at[2]) << 16 |
                              static_cast<uint32_t>(at[3]) << 24);
}

// The scale of the block with element `element`, which is in `run`.
APOGEE_HOST_DEVICE float BlockScale(const BlockCodes& codes, const BlockRun& run,
                                    const uint8_t* bytes, int64_t element) {
  const int64_t first = run.first / BlockCodes::kBlock, block = element / BlockCodes::kBlock;
  const uint8_t* const at = bytes + run.scale + (block - first) * codes.scale_size();
  if (!codes.nested) return LoadBytes(at);
  const int64_t nested = block / BlockCodes::kNestedBlock - first / BlockCodes::kNestedBlock;
  const float scaled = LoadBytes(bytes + codes.nested_map_begin() + 4 * static_cast<int64_t>(*at)) *
                       LoadBytes(bytes + run.nested + 4 * nested);
  return scaled + LoadBytes(bytes + codes.offset_begin());
}

// Decodes the elements that the runs list into out, which has n elements (block_codes.h).
struct DecodeBlocksArgs {
  DType dtype;
  BlockCodes codes;
  const void* bytes;
  const void* runs;  // BlockRun [num_runs], ascending
  int64_t num_runs;
  void* out;
  int64_t n;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_BLOCK_CODES_H_
