// SPDX-License-Identifier: Apache-2.0

// The mpirun on PATH, and whether it fits the MPI library that the program is linked with. With
// another MPI's mpirun every process would be a job of one.
//
//   const Launcher launcher = FindLauncher(/*limit_seconds=*/10);
//   if (!Fits(launcher.version, ParseMpi(library->linked))) ...
#ifndef APOGEE_TOOLS_DOCTOR_LAUNCHER_H_
#define APOGEE_TOOLS_DOCTOR_LAUNCHER_H_

#include <string>

namespace apogee::tools::doctor {

struct MpiVersion {
  std::string family;   // "Open MPI", "MPICH", "MVAPICH", "Intel MPI"; empty: unknown
  std::string version;  // "4.1.4"
  std::string ToString() const { return family.empty() ? "unknown" : family + " " + version; }
};

// Parses the output of `mpirun --version` or of MPI_Get_library_version.
MpiVersion ParseMpi(const std::string& text);

// True if the launcher starts programs of this library. MPICH, MVAPICH and Intel MPI share a
// launcher; an unknown launcher or library counts as fitting.
bool Fits(const MpiVersion& launcher, const MpiVersion& library);

struct Launcher {
  std::string path;  // empty: none on PATH
  MpiVersion version;
  std::string problem;  // why its version is unknown
};

// Looks for mpirun, then mpiexec.
Launcher FindLauncher(double limit_seconds);
// The full path; empty if PATH has no such program.
std::string FindOnPath(const std::string& name);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_LAUNCHER_H_
