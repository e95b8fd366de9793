// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/blocking_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace apogee {

void UseBlockingWaits(char** argv) {
#ifdef _OPENMP
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // Not overwriting makes a second round impossible.
  if (setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0) != 0) return;
  execv("/proc/self/exe", argv);
  // Here only when that failed: the program goes on, spinning.
#else
  (void)argv;
#endif
}

}  // namespace apogee
