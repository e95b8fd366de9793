// Uses the installed headers and libraries, and nothing of the source tree.
#include <cstdio>

#include "apogee/core/shape.h"

int main() {
  const apogee::Shape shape{2, 3};
  std::printf("consumer: %s has %d elements\n", shape.ToString().c_str(),
              static_cast<int>(shape.numel()));
  return shape.numel() == 6 ? 0 : 1;
}
