// SPDX-License-Identifier: Apache-2.0

// block_decode, and the encoder, which runs on the host only. Compiled without fused multiply-adds
// (CMakeLists.txt), which would change scales.
#include "apogee/tensor/cpu/block_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/dynamic_map.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kBlock = BlockCodes::kBlock;

// The values of nf4, as bitsandbytes has them.
constexpr std::array<float, 16> kNf4Map = {-1.0f,
                                           -0.6961928009986877f,
                                           -0.5250730514526367f,
                                           -0.39491748809814453f,
                                           -0.28444138169288635f,
                                           -0.18477343022823334f,
                                           -0.09105003625154495f,
                                           0.0f,
                                           0.07958029955625534f,
                                           0.16093020141124725f,
                                           0.24611230194568634f,
                                           0.33791524171829224f,
                                           0.44070982933044434f,
                                           0.5626170039176941f,
                                           0.7229568362236023f,
                                           1.0f};
constexpr uint8_t kNf4Zero = 7;
// The smallest scale by which a value is divided; of a short block also the smallest that is kept.
constexpr float kTiny = 1e-38f;

// The midpoints of neighbours in `map`. The code of x is the number of those below x.
template <typename Map>
constexpr auto BordersOf(const Map& map) {
  std::array<float, std::tuple_size_v<Map> - 1> borders{};
  for (size_t i = 0; i < borders.size(); ++i) borders[i] = (map[i] + map[i + 1]) / 2;
  return borders;
}

float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// Codes of the block that begins at `x`, and its scale.
float EncodeBlock(const BlockCodes& codes, const float* x, int64_t n, uint8_t* out) {
  const float largest = LargestMagnitude(x, n);
  if (codes.kind == BlockCodeKind::kInt8) {
    const float to_code = largest > 0 ? 127 / largest : 0;
    for (int64_t i = 0; i < n; ++i) {
      const float code = std::clamp(std::nearbyintf(x[i] * to_code), -127.0f, 127.0f);
      out[i] = static_cast<uint8_t>(static_cast<int8_t>(code));
    }
    return largest;
  }
  static constexpr auto kBorders = BordersOf(kNf4Map);
  std::array<uint8_t, kBlock + 1> one{};
  const bool is_short = n < kBlock;
  const float scale = is_short ? std::max(largest, kTiny) : largest;
  const float inverse = 1 / std::max(scale, kTiny);
  float scaled[kBlock];
  int32_t codes_of[kBlock] = {};
  for (int64_t i = 0; i < n; ++i) scaled[i] = is_short ? x[i] / scale : x[i] * inverse;
  for (const float border : kBorders) {
    for (int64_t i = 0; i < n; ++i) codes_of[i] += border < scaled[i] ? 1 : 0;
  }
  for (int64_t i = 0; i < n; ++i) one[static_cast<size_t>(i)] = static_cast<uint8_t>(codes_of[i]);
  one[static_cast<size_t>(n)] = kNf4Zero;  // the half byte behind an odd end
  for (int64_t i = 0; i < n; i += 2) {
    const auto at = static_cast<size_t>(i);
    out[i / 2] = static_cast<uint8_t>(one[at] << 4 | one[at + 1]);
  }
  return scale;
}

void Store(uint8_t* to, float value) { std::memcpy(to, &value, sizeof(value)); }

void EncodeScales(const BlockCodes& codes, std::vector<float> scales, uint8_t* bytes) {
  static const std::array<float, 256> map = DynamicMap(/*is_signed=*/true, 7, 8, MapPoints::kFused);
  static const auto borders = BordersOf(map);
  std::memcpy(bytes + codes.nested_map_begin(), map.data(), sizeof(map));
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const auto offset =
      static_cast<float>(sum / static_cast<double>(std::max<size_t>(1, scales.size())));
  Store(bytes + codes.offset_begin(), offset);
  for (float& scale : scales) scale -= offset;
  for (int64_t block = 0; block < codes.num_nested_blocks(); ++block) {
    const int64_t first = block * BlockCodes::kNestedBlock;
    const int64_t n = std::min(BlockCodes::kNestedBlock, codes.num_blocks() - first);
    const float largest = LargestMagnitude(scales.data() + first, n);
    Store(bytes + codes.nested_begin() + 4 * block, largest);
    for (int64_t i = first; i < first + n; ++i) {
      const float scaled = largest > 0 ? scales[static_cast<size_t>(i)] / largest : 0;
      bytes[codes.scale_begin() + i] =
          static_cast<uint8_t>(std::ranges::lower_bound(borders, scaled) - borders.begin());
    }
  }
}

// Of nf4: the two values of each byte, without their scale.
struct PairMap {
  explicit PairMap(const uint8_t* map_bytes) {
    float map[BlockCodes::kMapSize];
    std::memcpy(map, map_bytes, sizeof(map));
    for (int byte = 0; byte < 256; ++byte) {
      pairs[byte][0] = map[byte >> 4];
      pairs[byte][1] = map[byte & 15];
    }
  }
  alignas(64) float pairs[256][2];
};

// Decodes elements [begin, end) of a run, which are in one block, into f32.
void DecodeInBlock(const DecodeBlocksArgs& args, const BlockRun& run, const PairMap* map,
                   int64_t begin, int64_t end, float* out) {
  const auto* const bytes = static_cast<const uint8_t*>(args.bytes);
  const float scale = BlockScale(args.codes, run, bytes, begin);
  if (args.codes.kind == BlockCodeKind::kInt8) {
    const float step = scale / 127;
    const uint8_t* const at = bytes + run.code + (begin - run.first);
    for (int64_t i = 0; i < end - begin; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(at[i])) * step;
    }
    return;
  }
  const uint8_t* at = bytes + run.code + begin / 2 - run.first / 2;
  if (begin % 2 == 1) *out++ = map->pairs[*at++][1] * scale, ++begin;
  const int64_t pairs = (end - begin) / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    out[2 * i] = map->pairs[at[i]][0] * scale;
    out[2 * i + 1] = map->pairs[at[i]][1] * scale;
  }
  if ((end - begin) % 2 == 1) out[2 * pairs] = map->pairs[at[pairs]][0] * scale;
}

template <typename T>
void Decode(const DeviceContext& context, const DecodeBlocksArgs& args) {
  T* const out = static_cast<T*>(args.out);
  const auto* const runs = static_cast<const BlockRun*>(args.runs);
  const auto* const bytes = static_cast<const uint8_t*>(args.bytes);
  std::optional<PairMap> map;
  if (args.codes.kind == BlockCodeKind::kNf4 && !context.is_dry()) {
    map.emplace(bytes + args.codes.map_begin());
  }
  ForElements(context, args.n, [&](int64_t first, int64_t last) {
    float values[kBlock];
    const BlockRun* run =
        std::upper_bound(runs, runs + args.num_runs, first,
                         [](int64_t at, const BlockRun& r) { return at < r.out; }) -
        1;
    while (first < last) {
      const int64_t run_end = std::min(last, run->out + run->length);
      while (first < run_end) {
        const int64_t element = run->first + first - run->out;
        const int64_t n = std::min(run_end - first, kBlock - element % kBlock);
        DecodeInBlock(args, *run, map ? &*map : nullptr, element, element + n, values);
        for (int64_t i = 0; i < n; ++i) out[first + i] = T(values[i]);
        first += n;
      }
      ++run;
    }
  });
}

}  // namespace

void EncodeBlocks(const DeviceContext& context, const BlockCodes& codes, const float* x,
                  uint8_t* bytes) {
  if (codes.kind == BlockCodeKind::kNf4) {
    std::memcpy(bytes + codes.map_begin(), kNf4Map.data(), sizeof(kNf4Map));
  }
  std::vector<float> scales(static_cast<size_t>(codes.num_blocks()));
  ForRows(context, codes.num_blocks(), kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, n = std::min(kBlock, codes.numel - first);
      scales[static_cast<size_t>(block)] = EncodeBlock(
          codes, x + first, n, bytes + codes.code_begin() + first / codes.codes_per_byte());
    }
  });
  if (codes.nested) return EncodeScales(codes, std::move(scales), bytes);
  std::memcpy(bytes + codes.scale_begin(), scales.data(), scales.size() * sizeof(float));
}

void block_decode(const DeviceContext& context, const DecodeBlocksArgs& args) {
  DispatchFloat(args.dtype, "block_decode", [&]<typename T>() { Decode<T>(context, args); });
}

}  // namespace apogee::cpu
