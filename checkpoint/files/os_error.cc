// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/os_error.h"

#include <cerrno>
#include <cstring>

namespace apogee::checkpoint {

absl::Status OsError(const std::string& path, const std::string& what, int error) {
  const std::string text = internal::Concat(path, ": cannot ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case ENOENT:
    case ENOTDIR:
    case ELOOP:  // links that form a loop
      return absl::NotFoundError(text);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::UnavailableError(text);
    default:
      return absl::DataLossError(text);
  }
}

}  // namespace apogee::checkpoint
