// SPDX-License-Identifier: Apache-2.0

// Shared libraries that are searched for and loaded at run time, so that no program links them.
//
//   absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(
//       LibraryPaths({"libcublasLt.so.13"}, {"/usr/local/cuda/lib64"}, {"nvidia/cublas/lib"}));
//   if (!library.ok()) ...;                         // NotFound, with the loader's message
//   auto* create = library->Find<decltype(&cublasLtCreate)>("cublasLtCreate");   // or null
//
// A loaded library stays loaded: a thread may still be running its code.
#ifndef APOGEE_CORE_PROCESS_SHARED_LIBRARY_H_
#define APOGEE_CORE_PROCESS_SHARED_LIBRARY_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee {

// The paths at which to look for libraries of these names, in this order:
//   1. the bare names, which the system's loader searches for;
//   2. `folders`;
//   3. the lib folder of the active Python or Conda environment (VIRTUAL_ENV, CONDA_PREFIX);
//   4. the folders `packages` ("nvidia/nccl/lib") within Python's packages: those of PYTHONPATH, of
//      the environments and of the system.
// The files need not exist.
std::vector<std::string> LibraryPaths(const std::vector<std::string>& names,
                                      const std::vector<std::string>& folders,
                                      const std::vector<std::string>& packages);

class SharedLibrary {
 public:
  // Loads the first of the paths that can be loaded. If none can, returns NotFound with the
  // loader's message for the first path where a file exists, or else for the first path.
  static absl::StatusOr<SharedLibrary> Open(const std::vector<std::string>& paths);

  // The path that was loaded: "libnccl.so.2" if the system's loader found it.
  const std::string& path() const { return path_; }
  // The function's address; null if the library has none of that name.
  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(Symbol(name));
  }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* Symbol(const char* name) const;

  void* handle_;
  std::string path_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_SHARED_LIBRARY_H_
