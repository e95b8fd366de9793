// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/launcher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <sstream>

#include "apogee/tools/doctor/child.h"

namespace apogee::tools::doctor {

MpiVersion ParseMpi(const std::string& text) {
  // HYDRA is the launcher of MPICH and of the libraries derived from it.
  static const std::pair<const char*, const char*> kFamilies[] = {
      {"Intel(R) MPI", "Intel MPI"}, {"MVAPICH", "MVAPICH"}, {"HYDRA", "MPICH"}, {"MPICH", "MPICH"},
      {"Open MPI", "Open MPI"},      {"OpenRTE", "Open MPI"}};
  for (const auto& [word, family] : kFamilies) {
    const size_t at = text.find(word);
    if (at == std::string::npos) continue;
    static const std::regex kVersion("[0-9]+\\.[0-9]+(\\.[0-9]+)?");
    std::smatch match;
    const std::string rest = text.substr(at);
    return {family, std::regex_search(rest, match, kVersion) ? match.str() : ""};
  }
  return {};
}

bool Fits(const MpiVersion& launcher, const MpiVersion& library) {
  const auto is_open = [](const MpiVersion& mpi) { return mpi.family == "Open MPI"; };
  return launcher.family.empty() || library.family.empty() || is_open(launcher) == is_open(library);
}

std::string FindOnPath(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    struct stat info = {};
    if (stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return "";
}

Launcher FindLauncher(double limit_seconds) {
  Launcher launcher;
  for (const char* name : {"mpirun", "mpiexec"}) {
    if (launcher.path.empty()) launcher.path = FindOnPath(name);
  }
  if (launcher.path.empty()) return launcher;
  const ChildResult child = RunChild({launcher.path, "--version"}, limit_seconds);
  launcher.version = ParseMpi(child.out + child.err);
  if (child.end != ChildResult::kExited || child.code != 0) {
    launcher.problem = "--version " + Describe(child, limit_seconds);
  } else if (launcher.version.family.empty()) {
    launcher.problem = "--version names no MPI that is known here";
  }
  return launcher;
}

}  // namespace apogee::tools::doctor
