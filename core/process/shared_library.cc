// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/shared_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace apogee {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Folders such as lib/python3.11/site-packages below `prefix`. Sorted, because the order of a
// directory listing is arbitrary.
std::vector<fs::path> PackageFolders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator next(prefix / "lib", error), end; !error && next != end;
       next.increment(error)) {
    if (!next->path().filename().string().starts_with("python3")) continue;
    for (const char* kind : {"site-packages", "dist-packages"}) {
      folders.push_back(next->path() / kind);
    }
  }
  std::ranges::sort(folders);
  return folders;
}

}  // namespace

std::vector<std::string> LibraryPaths(const std::vector<std::string>& names,
                                      const std::vector<std::string>& folders,
                                      const std::vector<std::string>& packages) {
  std::vector<fs::path> all(folders.begin(), folders.end()), package_folders;
  std::istringstream python_path(Variable("PYTHONPATH"));
  for (std::string folder; std::getline(python_path, folder, ':');) {
    if (!folder.empty()) package_folders.emplace_back(folder);
  }
  std::vector<fs::path> prefixes;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = Variable(variable);
    if (prefix.empty()) continue;
    all.push_back(fs::path(prefix) / "lib");
    prefixes.emplace_back(prefix);
  }
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  for (const fs::path& prefix : prefixes) {
    const std::vector<fs::path> found = PackageFolders(prefix);
    package_folders.insert(package_folders.end(), found.begin(), found.end());
  }
  for (const fs::path& folder : package_folders) {
    for (const std::string& package : packages) all.push_back(folder / package);
  }
  std::vector<std::string> paths = names;
  for (const fs::path& folder : all) {
    for (const std::string& name : names) paths.push_back((folder / name).string());
  }
  return paths;
}

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::vector<std::string>& paths) {
  APOGEE_CHECK(!paths.empty(), "SharedLibrary::Open: no path to look at");
  std::string why;
  bool of_a_file = false;
  for (const std::string& path : paths) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle != nullptr) return SharedLibrary(handle, path);
    const char* const error = dlerror();
    std::error_code ignored;
    // The error of a file that exists but cannot be loaded is the more useful one.
    const bool is_file = !of_a_file && fs::exists(path, ignored);
    if (why.empty() || is_file) why = error == nullptr ? "unknown error" : error;
    of_a_file = of_a_file || is_file;
  }
  return absl::NotFoundError(why);
}

void* SharedLibrary::Symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace apogee
