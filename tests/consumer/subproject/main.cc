// SPDX-License-Identifier: Apache-2.0

// Uses the lowest layer of a library that is built with this program.
#include <cstdio>

#include "apogee/core/error.h"
#include "apogee/core/shape.h"

int main() {
  const apogee::Shape shape{2, 3, 5};
  try {
    shape[3];
  } catch (const apogee::Error& error) {
    std::printf("consumer: %s has %d elements\n", shape.ToString().c_str(),
                static_cast<int>(shape.numel()));
    return shape.numel() == 30 ? 0 : 1;
  }
  return 1;
}
