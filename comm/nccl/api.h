// SPDX-License-Identifier: Apache-2.0

// NcclApi: the NCCL of the machine, loaded when it is needed. Nothing links against NCCL.
//
//   APOGEE_ASSIGN_OR_RETURN(std::shared_ptr<const NcclApi> api, NcclApi::Load());
//   const UniqueId id = ValueOrThrow(api->NewUniqueId(std::chrono::seconds(10)));  // on one rank
//   ... hand the id to the others, and make a Communicator on each ...
//
// A loaded library stays loaded: a thread of ours may still be inside of it. Private to comm.
#ifndef APOGEE_COMM_NCCL_API_H_
#define APOGEE_COMM_NCCL_API_H_

#include <chrono>
#include <memory>
#include <string>

#include "apogee/comm/nccl/abi.h"
#include "apogee/core/status.h"

namespace apogee::comm::nccl {

class NcclApi : public std::enable_shared_from_this<NcclApi> {
 public:
  // The first version with non-blocking communicators: ncclConfig_t::blocking, ncclCommFinalize.
  static constexpr int kMinVersion = 21400;

  // An empty path: libnccl.so.2 where LibraryPaths (core/shared_library.h) looks for it, Python's
  // nvidia-nccl packages included. NotFound: no such library can be loaded. FailedPrecondition: it
  // is too old, no NCCL, or this build has NCCL switched off.
  static absl::StatusOr<std::shared_ptr<const NcclApi>> Load(const std::string& path = "");

  const Functions& functions() const { return functions_; }
  // 22809: version 2.28.9.
  int version() const { return version_; }
  const std::string& path() const { return path_; }

  // What all ranks of one communicator are made from. Any rank may make it. DeadlineExceeded: NCCL,
  // which looks for a network interface here, has not returned in time.
  absl::StatusOr<UniqueId> NewUniqueId(std::chrono::milliseconds timeout) const;
  // "ncclRemoteError: remote process exited or there was a network error".
  std::string Describe(Result result) const;

 private:
  NcclApi(Functions functions, int version, std::string path);

  const Functions functions_;
  const int version_;
  const std::string path_;
};

// "2.28.9".
std::string FormatVersion(int version);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_API_H_
