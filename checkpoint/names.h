// SPDX-License-Identifier: Apache-2.0

// Which names an untrusted file may give to files and tensors.
//
//   IsPlainFileName("rank-00001.safetensors");   // true
//   IsPlainFileName("../secret");                // false: it leads elsewhere
#ifndef APOGEE_CHECKPOINT_NAMES_H_
#define APOGEE_CHECKPOINT_NAMES_H_

#include <string>

#include "apogee/checkpoint/safetensors_header.h"

namespace apogee::checkpoint {

// One component of a path, which leads nowhere else.
inline bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

inline bool IsTensorName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find('\0') == std::string::npos;
}

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_NAMES_H_
