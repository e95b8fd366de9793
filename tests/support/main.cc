// SPDX-License-Identifier: Apache-2.0

// main of the tests below comm: gtest's, and --only-source.
#include <gtest/gtest.h>

#include "apogee/tests/support/only_source.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!apogee::testing::TakeOnlySource(argc, argv)) return 2;
  return RUN_ALL_TESTS();
}
