// SPDX-License-Identifier: Apache-2.0

// Libraries that are loaded at run time: where they are looked for, and what is said of absent
// ones.
#include "apogee/core/process/shared_library.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "apogee/tests/support/files/temp_dir.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace shared_library_test {

using ::testing::HasSubstr;
using testing::TempDir;

TEST(SharedLibraryTest, FindsWhatTheSystemFinds) {
  const SharedLibrary library =
      ValueOrThrow(SharedLibrary::Open({"libno-such.so.1", "libm.so.6", "libc.so.6"}));
  EXPECT_EQ(library.path(), "libm.so.6");
  double (*const cosine)(double) = library.Find<double (*)(double)>("cos");
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library.Find<void (*)()>("apogee_has_no_such_function"), nullptr);
}

TEST(SharedLibraryTest, SaysWhyTheFileThatIsThereCannotBeLoaded) {
  const TempDir dir;
  const std::string path = dir.Write("libtext.so", "no library");
  const auto library = SharedLibrary::Open({"libno-such.so.1", path, "libnor-this.so.2"});
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(library.status()), HasSubstr(path));
  EXPECT_THAT(Message(SharedLibrary::Open({"libno-such.so.1", "libnor-this.so.2"}).status()),
              HasSubstr("libno-such.so.1"));
}

TEST(SharedLibraryTest, LooksIntoPythonsPackages) {
  const TempDir dir;
  const std::string packages = dir / "lib/python3.12/site-packages";
  std::filesystem::create_directories(packages);
  setenv("VIRTUAL_ENV", dir.path().c_str(), 1);
  setenv("PYTHONPATH", "/one::/two", 1);
  const auto paths = LibraryPaths({"a.so", "b.so"}, {"/mine"}, {"nvidia/x/lib"});
  unsetenv("VIRTUAL_ENV");
  unsetenv("PYTHONPATH");
  const std::vector<std::string> expected = {"a.so",
                                             "b.so",
                                             "/mine/a.so",
                                             "/mine/b.so",
                                             dir / "lib/a.so",
                                             dir / "lib/b.so",
                                             "/one/nvidia/x/lib/a.so",
                                             "/one/nvidia/x/lib/b.so",
                                             "/two/nvidia/x/lib/a.so",
                                             "/two/nvidia/x/lib/b.so",
                                             packages + "/nvidia/x/lib/a.so",
                                             packages + "/nvidia/x/lib/b.so"};
  // Those of the system's Pythons follow.
  auto found = expected.begin();
  for (const std::string& path : paths) {
    if (found != expected.end() && path == *found) ++found;
  }
  EXPECT_EQ(found, expected.end()) << "missing or out of order: " << *found;
}

}  // namespace shared_library_test
}  // namespace apogee
