// SPDX-License-Identifier: Apache-2.0

// Helpers and macros over absl::Status, for code that reads files, flags or messages of peers.
//
//   absl::Status Load(const std::string& path) {
//     APOGEE_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
//     APOGEE_RETURN_IF_ERROR(Parse(text));
//     return absl::OkStatus();
//   }
//
// Debian's Abseil has its own string_view type, so messages are built as std::string:
// InvalidArgument("file ", path, " is empty").
#ifndef APOGEE_CORE_STATUS_H_
#define APOGEE_CORE_STATUS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "apogee/core/error.h"

namespace apogee {

namespace internal {
absl::Status MakeStatus(absl::StatusCode code, MessageParts parts);
}  // namespace internal

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return internal::MakeStatus(absl::StatusCode::kInvalidArgument,
                              {internal::MessagePart(parts)...});
}

template <typename... Parts>
absl::Status NotFound(const Parts&... parts) {
  return internal::MakeStatus(absl::StatusCode::kNotFound, {internal::MessagePart(parts)...});
}

template <typename... Parts>
absl::Status DataLoss(const Parts&... parts) {
  return internal::MakeStatus(absl::StatusCode::kDataLoss, {internal::MessagePart(parts)...});
}

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

// For callers that prefer exceptions: return the value, or throw Error with the status' message.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) Throw(Message(value.status()));
  return *std::move(value);
}
inline void OkOrThrow(const absl::Status& status) {
  if (!status.ok()) Throw(Message(status));
}
// The reverse: returns the value that `make` returns, or an error with the message of the Error
// that it throws.
template <typename Make>
auto ErrorToStatus(const Make& make) -> absl::StatusOr<decltype(make())> {
  try {
    return make();
  } catch (const Error& error) {
    return InvalidArgument(error.what());
  }
}

}  // namespace apogee

#define APOGEE_RETURN_IF_ERROR(expression)           \
  do {                                               \
    absl::Status apogee_status_ = (expression);      \
    if (!apogee_status_.ok()) return apogee_status_; \
  } while (false)

#define APOGEE_INTERNAL_CONCAT2(a, b) a##b
#define APOGEE_INTERNAL_CONCAT(a, b) APOGEE_INTERNAL_CONCAT2(a, b)
#define APOGEE_ASSIGN_OR_RETURN(target, expression) \
  APOGEE_INTERNAL_ASSIGN(APOGEE_INTERNAL_CONCAT(apogee_statusor_, __LINE__), target, expression)
#define APOGEE_INTERNAL_ASSIGN(holder, target, expression) \
  auto holder = (expression);                              \
  if (!holder.ok()) return holder.status();                \
  target = *std::move(holder)

#endif  // APOGEE_CORE_STATUS_H_
