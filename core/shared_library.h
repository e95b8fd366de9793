// SPDX-License-Identifier: Apache-2.0

// Shared libraries that are looked for and loaded at run time, so that no program links them.
//
//   absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(
//       LibraryPaths({"libcublasLt.so.13"}, {"/usr/local/cuda/lib64"}, {"nvidia/cublas/lib"}));
//   if (!library.ok()) ...;                         // NotFound: where it was looked for
//   auto* create = library->Find<decltype(&cublasLtCreate)>("cublasLtCreate");   // or null
//
// A loaded library stays loaded: a thread may still be inside of it.
#ifndef APOGEE_CORE_SHARED_LIBRARY_H_
#define APOGEE_CORE_SHARED_LIBRARY_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee {

// Where libraries of these names may lie, in order: where the system's loader finds them (the bare
// names); in `folders`; in the lib folder of the active Python or Conda environment (VIRTUAL_ENV,
// CONDA_PREFIX); in the folders `packages` of Python's packages ("nvidia/nccl/lib"), those of
// PYTHONPATH, of the environments and of the system. No file needs to be there.
std::vector<std::string> LibraryPaths(const std::vector<std::string>& names,
                                      const std::vector<std::string>& folders,
                                      const std::vector<std::string>& packages);

class SharedLibrary {
 public:
  // The first of the paths that can be loaded. NotFound, when there is none, has the loader's words
  // for the first path that names a file, or else for the first path.
  static absl::StatusOr<SharedLibrary> Open(const std::vector<std::string>& paths);

  // As it was asked for: "libnccl.so.2" where the system's loader found it.
  const std::string& path() const { return path_; }
  // Null: the library has nothing of that name.
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

#endif  // APOGEE_CORE_SHARED_LIBRARY_H_
