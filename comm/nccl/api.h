// SPDX-License-Identifier: Apache-2.0

// NcclApi: the machine's NCCL, loaded at first use. Nothing links against NCCL.
//
//   APOGEE_ASSIGN_OR_RETURN(std::shared_ptr<const NcclApi> api, NcclApi::Load());
//   const UniqueId id = ValueOrThrow(api->NewUniqueId(std::chrono::seconds(10)));  // on one rank
//   ... send the id to the other ranks, and make a Communicator on each ...
//
// A loaded library stays loaded: one of our threads may still be running in it. Private to comm.
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

  // Loads NCCL from `path`. An empty path means libnccl.so.2 in the places that LibraryPaths
  // (core/process/shared_library.h) lists, Python's nvidia-nccl packages included. NotFound: no
  // such library can be loaded. FailedPrecondition: it is too old, or is not NCCL, or this build
  // has NCCL switched off.
  static absl::StatusOr<std::shared_ptr<const NcclApi>> Load(const std::string& path = "");

  const Functions& functions() const { return functions_; }
  // For example 22809, which is version 2.28.9.
  int version() const { return version_; }
  const std::string& path() const { return path_; }

  // An id from which all ranks make one communicator. Any rank may create it. DeadlineExceeded:
  // NCCL did not return in time; it looks for a network interface here.
  absl::StatusOr<UniqueId> NewUniqueId(std::chrono::milliseconds timeout) const;
  // For example "ncclRemoteError: remote process exited or there was a network error".
  std::string Describe(Result result) const;

 private:
  NcclApi(Functions functions, int version, std::string path);

  const Functions functions_;
  const int version_;
  const std::string path_;
};

// For example "2.28.9".
std::string FormatVersion(int version);

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_API_H_
