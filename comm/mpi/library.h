// SPDX-License-Identifier: Apache-2.0

// Which MPI this program has. Needs no MPI_Init.
//
//   if (const auto library = mpi::Library()) std::cout << library->linked << "\n";
#ifndef APOGEE_COMM_MPI_LIBRARY_H_
#define APOGEE_COMM_MPI_LIBRARY_H_

#include <optional>
#include <string>

namespace apogee::comm::mpi {

struct LibraryVersions {
  std::string headers;  // "Open MPI 4.1.4": what it was compiled with
  std::string linked;   // what the library that is loaded says of itself
};

// Nothing in a build without MPI.
std::optional<LibraryVersions> Library();

}  // namespace apogee::comm::mpi

#endif  // APOGEE_COMM_MPI_LIBRARY_H_
