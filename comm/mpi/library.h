// SPDX-License-Identifier: Apache-2.0

// The versions of this program's MPI. Needs no MPI_Init.
//
//   if (const auto library = mpi::Library()) std::cout << library->linked << "\n";
#ifndef APOGEE_COMM_MPI_LIBRARY_H_
#define APOGEE_COMM_MPI_LIBRARY_H_

#include <optional>
#include <string>

namespace apogee::comm::mpi {

struct LibraryVersions {
  std::string headers;  // the version compiled with: "Open MPI 4.1.4"
  std::string linked;   // the version that the loaded library reports
};

// std::nullopt in a build without MPI.
std::optional<LibraryVersions> Library();

}  // namespace apogee::comm::mpi

#endif  // APOGEE_COMM_MPI_LIBRARY_H_
