// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/blocking_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace apogee {

void UseBlockingWaits(char** argv) {
#ifdef _OPENMP
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // Not overwriting it makes a second restart impossible.
  if (setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0) != 0) return;
  execv("/proc/self/exe", argv);
  // Reached only if execv failed: the program goes on with spinning waits.
#else
  (void)argv;
#endif
}

}  // namespace apogee
