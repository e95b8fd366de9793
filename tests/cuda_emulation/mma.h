// SPDX-License-Identifier: Apache-2.0

// The warp instructions of tensor/cuda/attention/mma.cuh on fibers. Lanes hold the same elements
// as in PTX, and every element goes through its lane, so that an index that is wrong on a GPU is
// wrong here, too.
#ifndef APOGEE_TESTS_CUDA_EMULATION_MMA_H_
#define APOGEE_TESTS_CUDA_EMULATION_MMA_H_

#include <array>

namespace cuda_emulation {

// mma.m16n8k16.row.col with f32 sums. to_float converts one element's bits.
inline void Mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4],
                float (*to_float)(uint16_t)) {
  int lane = 0;
  const void* lanes = WarpExchange(0xffffffffu, a, sizeof(a), lane);
  const int group = lane / 4, pair = lane % 4;
  const auto unpack = [&](uint32_t bits, float* to) {
    to[0] = to_float(static_cast<uint16_t>(bits));
    to[1] = to_float(static_cast<uint16_t>(bits >> 16));
  };
  float rows[2][16];  // rows `group` and `group` + 8 of a
  for (int s = 0; s < 4; ++s) {
    const auto part = ReadLane<std::array<uint32_t, 4>>(lanes, 4 * group + s);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 2; ++r) unpack(part[2 * half + r], rows[r] + 8 * half + 2 * s);
    }
  }
  const uint32_t b[2] = {b0, b1};
  lanes = WarpExchange(0xffffffffu, b, sizeof(b), lane);
  for (int e = 0; e < 2; ++e) {
    float column[16];  // column 2 * pair + e of b
    for (int s = 0; s < 4; ++s) {
      const auto part = ReadLane<std::array<uint32_t, 2>>(lanes, 4 * (2 * pair + e) + s);
      for (int half = 0; half < 2; ++half) unpack(part[half], column + 8 * half + 2 * s);
    }
    for (int r = 0; r < 2; ++r) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += rows[r][k] * column[k];
      sums[2 * r + e] += sum;
    }
  }
}

// ldmatrix.m8n8.x4.
template <bool kTransposed>
void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
  CheckAligned(row, 16);
  int lane = 0;
  const void* lanes = WarpExchange(0xffffffffu, &row, sizeof(row), lane);
  const int group = lane / 4, pair = lane % 4;
  for (int i = 0; i < 4; ++i) {
    uint16_t values[2];
    for (int e = 0; e < 2; ++e) {
      const int from = kTransposed ? 2 * pair + e : group, at = kTransposed ? group : 2 * pair + e;
      values[e] = ReadLane<const uint16_t*>(lanes, 8 * i + from)[at];
    }
    matrices[i] = values[0] | static_cast<uint32_t>(values[1]) << 16;
  }
}

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_MMA_H_
