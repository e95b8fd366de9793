// SPDX-License-Identifier: Apache-2.0

// apogee::Error, the library's one exception type, and the checks that throw it.
//
// Misuse of the API (shape, dtype, device, order of calls) and device failures throw Error. Bad
// input from outside (files, flags, peers) returns absl::Status instead (core/status.h). Every
// message says what was wrong, where, and what would be right:
//
//   APOGEE_CHECK(a.dtype() == b.dtype(), "matmul: both operands need one dtype, got ",
//                DTypeName(a.dtype()), " and ", DTypeName(b.dtype()));
#ifndef APOGEE_CORE_ERROR_H_
#define APOGEE_CORE_ERROR_H_

#include <sstream>
#include <stdexcept>
#include <string>

namespace apogee {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

namespace internal {

template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace internal

// Throws Error with the concatenated parts.
template <typename... Parts>
[[noreturn]] void Throw(const Parts&... parts) {
  throw Error(internal::Concat(parts...));
}

}  // namespace apogee

// Throws Error unless `condition` holds. The message's parts are evaluated only on failure.
#define APOGEE_CHECK(condition, ...) \
  do {                               \
    if (!(condition)) [[unlikely]]   \
      ::apogee::Throw(__VA_ARGS__);  \
  } while (false)

#endif  // APOGEE_CORE_ERROR_H_
