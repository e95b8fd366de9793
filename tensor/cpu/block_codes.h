// SPDX-License-Identifier: Apache-2.0

// The encoder of BlockCodes (tensor/kernels/block_codes.h). On the host only: a weight is encoded
// once.
#ifndef APOGEE_TENSOR_CPU_BLOCK_CODES_H_
#define APOGEE_TENSOR_CPU_BLOCK_CODES_H_

#include <cstdint>

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/block_codes.h"

namespace apogee::cpu {

// Writes codes.bytes() bytes for codes.numel finite values.
void EncodeBlocks(const DeviceContext& context, const BlockCodes& codes, const float* x,
                  uint8_t* bytes);

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_BLOCK_CODES_H_
