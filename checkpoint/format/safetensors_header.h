// SPDX-License-Identifier: Apache-2.0

// The header of a safetensors file: names, dtypes, shapes and places of tensors, and free-form
// metadata.
//
//   auto header = ParseSafetensorsHeader(
//       json, {.path = path, .data_bytes = size - 8 - json.size()});
//
// The parser accepts exactly the headers that the format allows, and never builds a document of the
// untrusted text. It rejects, naming the file and the byte where it stopped:
//
//   - text that is not one UTF-8 JSON object followed only by spaces
//   - a name or a field given twice; unknown dtypes and fields
//   - sizes that are negative, fractional or overflow
//   - ranges that do not match their shape, overlap, leave holes or do not end where the data ends
//   - metadata that is not strings
//   - more than kMaxTensors tensors
#ifndef APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_HEADER_H_
#define APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxRank = 16;

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  // Values are bare strings; a writer may have put JSON text in some.
  std::map<std::string, std::string> metadata;
};

struct HeaderSource {
  std::string path;        // for messages
  int64_t data_bytes = 0;  // bytes of the file after the header
};

// Bytes of one element, or 0 for an unknown dtype.
int64_t SafetensorsDTypeSize(const std::string& dtype);

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& json,
                                                         const HeaderSource& source);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_HEADER_H_
