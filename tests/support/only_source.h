// SPDX-License-Identifier: Apache-2.0

// --only-source=optim/lamb_test.cc: runs the tests of that source only. In a unity build a test
// program holds several sources, and ctest has an entry for each (cmake/ApogeeTest.cmake).
#ifndef APOGEE_TESTS_SUPPORT_ONLY_SOURCE_H_
#define APOGEE_TESTS_SUPPORT_ONLY_SOURCE_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace apogee::testing {

// The names of the tests that the source holds, as a filter of gtest's.
inline std::string TestsOfSource(std::string_view source) {
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!std::string_view(test.file()).ends_with(source)) continue;
      filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

// Takes the flag out of the arguments that gtest has left. False, with a message on stderr, where
// the program holds no test of that source: a run of no tests would pass.
inline bool TakeOnlySource(int& argc, char** argv) {
  constexpr std::string_view kFlag = "--only-source=";
  int kept = 1;
  bool found = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFlag)) {
      argv[kept++] = argv[i];
      continue;
    }
    const std::string tests = TestsOfSource("/" + std::string(argument.substr(kFlag.size())));
    found = !tests.empty();
    if (!found) std::fprintf(stderr, "%s: this program holds no such tests\n", argv[i]);
    // A filter that the caller gave stays: it names tests of this source.
    if (::testing::GTEST_FLAG(filter) == "*") ::testing::GTEST_FLAG(filter) = tests;
  }
  argc = kept;
  return found;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_ONLY_SOURCE_H_
