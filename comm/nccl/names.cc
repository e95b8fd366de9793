// SPDX-License-Identifier: Apache-2.0

// NCCL's versions and results as text for messages.
#include <utility>

#include "apogee/comm/failure/run_within.h"
#include "apogee/comm/nccl/api.h"

namespace apogee::comm::nccl {
namespace {

constexpr const char* kResultNames[] = {
    "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
    "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};

}  // namespace

std::string FormatVersion(int version) {
  // Up to 2.8 a version number was X * 1000 + Y * 100 + Z.
  const int step = version < 10000 ? 1000 : 10000;
  return std::to_string(version / step) + "." + std::to_string(version % step / 100) + "." +
         std::to_string(version % 100);
}

NcclApi::NcclApi(Functions functions, int version, std::string path)
    : functions_(functions), version_(version), path_(std::move(path)) {}

std::string NcclApi::Describe(Result result) const {
  const bool known = result >= kSuccess && result <= kInProgress;
  const std::string name =
      known ? kResultNames[result] : "result " + std::to_string(static_cast<int>(result));
  const char* const text = functions_.get_error_string(result);
  return text == nullptr ? name : name + ": " + text;
}

absl::StatusOr<UniqueId> NcclApi::NewUniqueId(std::chrono::milliseconds timeout) const {
  struct Answer {
    UniqueId id = {};
    Result result = kInProgress;
  };
  const auto answer = std::make_shared<Answer>();
  const bool returned = RunWithin(timeout, [api = shared_from_this(), answer] {
    answer->result = api->functions_.get_unique_id(&answer->id);
  });
  if (!returned) {
    return absl::DeadlineExceededError("nccl: ncclGetUniqueId has not returned within " +
                                       std::to_string(timeout.count()) +
                                       " ms; NCCL_DEBUG=INFO says what NCCL is doing");
  }
  if (answer->result == kSuccess) return answer->id;
  return absl::UnavailableError("nccl: ncclGetUniqueId: " + Describe(answer->result));
}

}  // namespace apogee::comm::nccl
