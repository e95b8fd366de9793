// SPDX-License-Identifier: Apache-2.0

// DescriptorLimit: while it exists, the process can open only `more` more files.
//
//   const DescriptorLimit limit(1);      // as under `ulimit -n`
#ifndef APOGEE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_
#define APOGEE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace apogee::testing {

class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    // A new file gets the lowest free number.
    std::vector<int> fds;
    for (int i = 0; i < more; ++i) fds.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(fds.back()) + 1;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (const int fd : fds) close(fd);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_DESCRIPTOR_LIMIT_H_
