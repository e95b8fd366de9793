// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/cublas_api.cuh"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "apogee/core/error.h"
#include "apogee/core/process/shared_library.h"

namespace apogee::cuda {
namespace {

// This build's version comes first: an older driver may not support a later version's library.
std::vector<std::string> Names() {
  std::vector<std::string> names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  if (CUDART_VERSION < 13000) std::swap(names[0], names[1]);
  return names;
}

std::vector<std::string> Paths() {
  std::vector<std::string> folders = {"/usr/local/cuda/lib64"};
  const char* const home = std::getenv("CUDA_HOME");
  if (home != nullptr && *home != '\0') {
    folders.insert(folders.begin(), std::string(home) + "/lib64");
  }
  return LibraryPaths(Names(), folders, {"nvidia/cublas/lib", "nvidia/cu13/lib"});
}

CublasApi Load(const std::string& named) {
  const std::vector<std::string> paths = named.empty() ? Paths() : std::vector{named};
  const absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(paths);
  if (!library.ok() && !named.empty()) {
    Throw("matmul: cannot load the cuBLASLt that ", kCublasVariable,
          " names: ", Message(library.status()), "; set it to the path of libcublasLt.so.",
          CUDART_VERSION / 1000, ", or unset it to look for one");
  }
  if (!library.ok()) {
    Throw("matmul: libcublasLt was not found: ", Message(library.status()), "; looked for ",
          Names()[0], " and ", Names()[1],
          " where the system's loader looks, in $CUDA_HOME/lib64, /usr/local/cuda/lib64, "
          "$VIRTUAL_ENV, $CONDA_PREFIX and Python's nvidia packages; install cuBLAS (the CUDA "
          "toolkit, or pip install nvidia-cublas), or set ",
          kCublasVariable, " to its path");
  }
  CublasApi api;
  std::string missing;
#define APOGEE_FIND_FUNCTION(name)                     \
  api.name = library->Find<decltype(api.name)>(#name); \
  if (api.name == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#name);
  APOGEE_FOR_EACH_CUBLAS_FUNCTION(APOGEE_FIND_FUNCTION)
#undef APOGEE_FIND_FUNCTION
  APOGEE_CHECK(missing.empty(), "matmul: ", library->path(), " is no cuBLASLt 12 or 13: it lacks ",
               missing);
  return api;
}

CublasApi LoadOrEmulate() {
  const char* const named = std::getenv(kCublasVariable);
#ifdef APOGEE_CUDA_EMULATED
  if (named == nullptr) {
#define APOGEE_EMULATED_FUNCTION(name) .name = &::name,
    return {APOGEE_FOR_EACH_CUBLAS_FUNCTION(APOGEE_EMULATED_FUNCTION)};
#undef APOGEE_EMULATED_FUNCTION
  }
#endif
  return Load(named == nullptr ? "" : named);
}

}  // namespace

const CublasApi& CublasApi::Get() {
  static const CublasApi api = LoadOrEmulate();
  return api;
}

void CublasApi::Check(cublasStatus_t status, const std::string& what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Throw("matmul: ", what, ": ", cublasLtGetStatusName(status), " (",
        cublasLtGetStatusString(status), ")");
}

}  // namespace apogee::cuda
