// SPDX-License-Identifier: Apache-2.0

// The loader in a build that was configured without NCCL.
#include "apogee/comm/nccl/api.h"

namespace apogee::comm::nccl {

absl::StatusOr<std::shared_ptr<const NcclApi>> NcclApi::Load(const std::string&) {
  return absl::FailedPreconditionError(
      "nccl: this build was configured with APOGEE_WITH_NCCL=OFF; configure it with AUTO, which "
      "needs no NCCL until a program runs");
}

}  // namespace apogee::comm::nccl
