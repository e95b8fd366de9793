// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/status.h"

namespace apogee::internal {

absl::Status MakeStatus(absl::StatusCode code, MessageParts parts) {
  return absl::Status(code, Format(parts));
}

}  // namespace apogee::internal
