// SPDX-License-Identifier: Apache-2.0

// Checks the names that an untrusted file gives to files and tensors.
//
//   IsPlainFileName("rank-00001.safetensors");   // true
//   IsPlainFileName("../secret");                // false: it leads out of the folder
#ifndef APOGEE_CHECKPOINT_NAMES_H_
#define APOGEE_CHECKPOINT_NAMES_H_

#include <string>

#include "apogee/checkpoint/format/safetensors_header.h"

namespace apogee::checkpoint {

// Whether the name is one component of a path and stays in its folder.
inline bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

inline bool IsTensorName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find('\0') == std::string::npos;
}

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_NAMES_H_
