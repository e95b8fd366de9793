// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace apogee {

void KeepStandardDescriptors() {
  // open() returns the lowest free number. Read-only, so that writes fail.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace apogee
