// SPDX-License-Identifier: Apache-2.0

// main of the tests below comm: gtest's, with --only-source and APOGEE_TEST_SHARD.
#include <gtest/gtest.h>

#include "apogee/tests/support/only_source.h"
#include "apogee/tests/support/test_shard.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!apogee::testing::TakeOnlySource(argc, argv)) return 2;
  if (!apogee::testing::TakeShard(/*num_processes=*/1)) return 2;
  return RUN_ALL_TESTS();
}
