// SPDX-License-Identifier: Apache-2.0

// DynamicMap: the dynamic code maps of 8 bits and fewer (Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", ICLR 2022), with the values of bitsandbytes since 0.41.
//
//   const std::array<float, 256> map = DynamicMap(/*is_signed=*/true, /*max_exponent_bits=*/7, 8);
//   float value = map[code] * absmax;
//
// Its points come from torch.linspace, whose roundings depend on the processor. 8-bit optimizers
// have those of eight lanes, as in their recorded states; scales of weights in 4 bits have those of
// one fused multiply-add per point, as in recorded folders. They differ by one unit in the last
// place in a sixth of the values.
#ifndef APOGEE_TENSOR_KERNELS_DYNAMIC_MAP_H_
#define APOGEE_TENSOR_KERNELS_DYNAMIC_MAP_H_

#include <array>

namespace apogee {

enum class MapPoints { kEightLanes, kFused };
// Generates the map: 2^total_bits values, filled up with zeros to 256, sorted. Computed in f32 as
// the reference does.
std::array<float, 256> DynamicMap(bool is_signed, int max_exponent_bits, int total_bits,
                                  MapPoints points = MapPoints::kEightLanes);

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_DYNAMIC_MAP_H_
