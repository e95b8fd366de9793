// SPDX-License-Identifier: Apache-2.0

// A TempDir with one path for all processes under mpirun. It exists until all of them have finished
// with it.
//
//   const SharedTempDir dir;
//   RunRanks(2, [&](comm::World& world) { ... booster.save_training_state(dir / "run", ...); });
#ifndef APOGEE_TESTS_SUPPORT_FILES_SHARED_TEMP_DIR_H_
#define APOGEE_TESTS_SUPPORT_FILES_SHARED_TEMP_DIR_H_

#include <string>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/launch_ranks.h"

namespace apogee::testing {

class SharedTempDir {
 public:
  SharedTempDir() { ShareFromFirst(path_); }
  ~SharedTempDir() {
    if (NumProcesses() > 1) MeetAllProcesses();
  }
  SharedTempDir(const SharedTempDir&) = delete;
  SharedTempDir& operator=(const SharedTempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  TempDir own_;  // rank 0's is used
  std::string path_ = own_.path();
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_SHARED_TEMP_DIR_H_
