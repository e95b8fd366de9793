#include "apogee/comm/nccl/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace apogee::comm::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

// Where pip and conda put it in the active environment.
std::vector<std::string> PathsOfEnvironments() {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const prefix = std::getenv(variable);
    if (prefix == nullptr || *prefix == '\0') continue;
    const fs::path lib = fs::path(prefix) / "lib";
    paths.push_back((lib / kLibrary).string());
    std::error_code error;
    for (fs::directory_iterator next(lib, error), end; !error && next != end;
         next.increment(error)) {
      if (!next->path().filename().string().starts_with("python")) continue;
      paths.push_back((next->path() / "site-packages/nvidia/nccl/lib" / kLibrary).string());
    }
  }
  return paths;
}

absl::StatusOr<std::pair<void*, std::string>> Open(const std::string& path) {
  std::vector<std::string> paths = {path};
  if (path.empty()) {
    paths = PathsOfEnvironments();
    paths.insert(paths.begin(), kLibrary);
  }
  std::string first_error;
  for (const std::string& candidate : paths) {
    void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != nullptr) return std::pair(library, candidate);
    const char* const error = dlerror();
    if (first_error.empty()) first_error = error == nullptr ? "unknown error" : error;
  }
  return NotFound("nccl: cannot load ", paths.front(), ": ", first_error,
                  "; install NCCL (libnccl2, or pip install nvidia-nccl-cu12), or add its folder "
                  "to LD_LIBRARY_PATH");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const NcclApi>> NcclApi::Load(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const auto opened, Open(path));
  const auto& [library, found] = opened;
  Functions functions = {};
  std::string missing;
  const auto resolve = [&, handle = library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  const auto refuse = [&, where = found](const std::string& what) {
    return absl::FailedPreconditionError("nccl: " + where + " " + what + "; NCCL " +
                                         FormatVersion(kMinVersion) + " or later is needed");
  };

  // First of all: an old version lacks functions too, but that is not what is wrong with it.
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
  return std::shared_ptr<const NcclApi>(new NcclApi(functions, version, found));
}

}  // namespace apogee::comm::nccl
