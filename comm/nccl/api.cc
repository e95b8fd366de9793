// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/api.h"

#include <utility>
#include <vector>

#include "apogee/core/process/shared_library.h"

namespace apogee::comm::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

absl::StatusOr<SharedLibrary> Open(const std::string& path) {
  const std::vector<std::string> paths =
      path.empty() ? LibraryPaths({kLibrary}, {}, {"nvidia/nccl/lib"}) : std::vector{path};
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(paths);
  if (library.ok()) return library;
  return NotFound("nccl: cannot load ", paths.front(), ": ", Message(library.status()),
                  "; install NCCL (libnccl2, or pip install nvidia-nccl-cu12), or add its folder "
                  "to LD_LIBRARY_PATH");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const NcclApi>> NcclApi::Load(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const SharedLibrary library, Open(path));
  Functions functions = {};
  std::string missing;
  const auto resolve = [&](const char* name, auto& function) {
    function = library.Find<std::remove_reference_t<decltype(function)>>(name);
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError("nccl: " + library.path() + " " + what + "; NCCL " +
                                         FormatVersion(kMinVersion) + " or later is needed");
  };

  // Checked first: an old version also lacks functions, but its age is the real problem.
  resolve("ncclGetVersion", functions.get_version);
  if (!missing.empty()) return refuse("is not NCCL: it has no ncclGetVersion");
  int version = 0;
  if (const Result result = functions.get_version(&version); result != kSuccess) {
    return refuse("does not say its version: ncclGetVersion returned " +
                  std::to_string(static_cast<int>(result)));
  }
  if (version < kMinVersion) {
    return refuse("is NCCL " + FormatVersion(version) +
                  ", which has no non-blocking communicators: its calls may never return");
  }

  resolve("ncclGetUniqueId", functions.get_unique_id);
  resolve("ncclCommInitRankConfig", functions.comm_init_rank_config);
  resolve("ncclCommFinalize", functions.comm_finalize);
  resolve("ncclCommDestroy", functions.comm_destroy);
  resolve("ncclCommAbort", functions.comm_abort);
  resolve("ncclCommGetAsyncError", functions.comm_get_async_error);
  resolve("ncclGetErrorString", functions.get_error_string);
  resolve("ncclGetLastError", functions.get_last_error);
  resolve("ncclAllReduce", functions.all_reduce);
  resolve("ncclReduceScatter", functions.reduce_scatter);
  resolve("ncclAllGather", functions.all_gather);
  resolve("ncclBroadcast", functions.broadcast);
  resolve("ncclReduce", functions.reduce);
  resolve("ncclSend", functions.send);
  resolve("ncclRecv", functions.recv);
  resolve("ncclGroupStart", functions.group_start);
  resolve("ncclGroupEnd", functions.group_end);
  if (!missing.empty()) {
    return refuse("says that it is NCCL " + FormatVersion(version) + " but lacks " + missing);
  }
  return std::shared_ptr<const NcclApi>(new NcclApi(functions, version, library.path()));
}

}  // namespace apogee::comm::nccl
