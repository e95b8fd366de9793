// SPDX-License-Identifier: Apache-2.0

// The mpirun that is found on PATH, and whether it fits the library that the program is linked
// with: with another MPI's mpirun every process takes itself for the only one.
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

// From what `mpirun --version` prints, or MPI_Get_library_version returns.
MpiVersion ParseMpi(const std::string& text);

// MPICH, MVAPICH and Intel MPI share a launcher. An unknown one fits.
bool Fits(const MpiVersion& launcher, const MpiVersion& library);

struct Launcher {
  std::string path;  // empty: there is none
  MpiVersion version;
  std::string problem;  // why its version is unknown
};

// Looks for mpirun, then mpiexec.
Launcher FindLauncher(double limit_seconds);
// Empty where PATH has none.
std::string FindOnPath(const std::string& name);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_LAUNCHER_H_
