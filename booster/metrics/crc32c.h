// SPDX-License-Identifier: Apache-2.0

// CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of TFRecord files.
//
//   uint32_t crc = Crc32c("123456789", 9);                // 0xe3069283
//   uint32_t stored = MaskedCrc32c(data, size);           // as TFRecord stores it
#ifndef APOGEE_BOOSTER_METRICS_CRC32C_H_
#define APOGEE_BOOSTER_METRICS_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace apogee {

uint32_t Crc32c(const void* data, size_t size);

// The CRC rotated right by 15 bits, plus 0xa282ead8. So a CRC of data that contains CRCs stays a
// good checksum.
uint32_t MaskedCrc32c(const void* data, size_t size);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_CRC32C_H_
