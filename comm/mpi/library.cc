// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/mpi/library.h"

#include <mpi.h>

#include "apogee/core/error.h"

namespace apogee::comm::mpi {

std::optional<LibraryVersions> Library() {
  LibraryVersions versions;
#if defined(OMPI_MAJOR_VERSION)
  versions.headers = internal::Concat("Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".",
                                      OMPI_RELEASE_VERSION);
#elif defined(I_MPI_VERSION)
  versions.headers = internal::Concat("Intel MPI ", I_MPI_VERSION);
#elif defined(MVAPICH2_VERSION)
  versions.headers = internal::Concat("MVAPICH ", MVAPICH2_VERSION);
#elif defined(MPICH_VERSION)
  versions.headers = internal::Concat("MPICH ", MPICH_VERSION);
#else
  versions.headers = internal::Concat("MPI standard ", MPI_VERSION, ".", MPI_SUBVERSION);
#endif
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) == MPI_SUCCESS) {
    versions.linked.assign(text, static_cast<size_t>(length));
  }
  return versions;
}

}  // namespace apogee::comm::mpi
