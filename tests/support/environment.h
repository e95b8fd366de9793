// SPDX-License-Identifier: Apache-2.0

// Environment: sets an environment variable for the lifetime of the object.
//
//   const Environment environment("APOGEE_EMULATED_GPU", "none");
#ifndef APOGEE_TESTS_SUPPORT_ENVIRONMENT_H_
#define APOGEE_TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdlib>

namespace apogee::testing {

// The variable must not be set before.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_ENVIRONMENT_H_
