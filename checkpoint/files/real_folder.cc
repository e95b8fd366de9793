// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/real_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/core/process/raw_file.h"

namespace apogee::checkpoint {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// Whether both are on one device and in one mount. Kernels before 5.8 do not tell mounts apart.
absl::StatusOr<bool> InOneMount(int a, int b, const std::string& path) {
  struct statx of[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (statx(i == 0 ? a : b, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MNT_ID, &of[i]) != 0) {
      return OsError(path, "examine", errno);
    }
  }
  const bool both = (of[0].stx_mask & of[1].stx_mask & STATX_MNT_ID) != 0;
  return of[0].stx_dev_major == of[1].stx_dev_major && of[0].stx_dev_minor == of[1].stx_dev_minor &&
         (!both || of[0].stx_mnt_id == of[1].stx_mnt_id);
}

class RealFolder : public Folder {
 public:
  // Takes over the descriptor.
  static absl::StatusOr<std::unique_ptr<Folder>> Make(const std::string& path, Descriptor folder) {
    DIR* const stream = fdopendir(folder.fd());
    if (stream == nullptr) return OsError(path, "list", errno);
    folder.Release();
    return std::unique_ptr<Folder>(new RealFolder(path, stream));
  }
  ~RealFolder() override { closedir(stream_); }
  RealFolder(const RealFolder&) = delete;
  RealFolder& operator=(const RealFolder&) = delete;

  absl::StatusOr<std::vector<std::string>> List() override {
    std::vector<std::string> names;
    rewinddir(stream_);
    errno = 0;
    while (const dirent* entry = readdir(stream_)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    if (errno != 0) return OsError(path_, "list", errno);
    std::ranges::sort(names);
    return names;
  }

  absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& name) override {
    const std::string path = JoinPath(path_, name);
    Descriptor inner(openat(fd(), name.c_str(), kOpenFolder | O_NOFOLLOW));
    // A link gives ENOTDIR or ELOOP.
    if (inner.fd() < 0 && (errno == ENOTDIR || errno == ELOOP)) {
      return absl::FailedPreconditionError(path + ": is not a folder");
    }
    if (inner.fd() < 0) return OsError(path, "open", errno);
    APOGEE_ASSIGN_OR_RETURN(const bool here, InOneMount(fd(), inner.fd(), path));
    if (!here) {
      return absl::PermissionDeniedError(
          path + ": is mounted there; data on another device is left alone, unmount it first");
    }
    return Make(path, std::move(inner));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    const int error = RenameNew(fd(), from, to);
    if (error == 0) return absl::OkStatus();
    return OsError(JoinPath(path_, to), "rename " + JoinPath(path_, from) + " to it", error);
  }

  absl::Status RemoveFile(const std::string& name) override { return Unlink(name, 0); }
  absl::Status RemoveDir(const std::string& name) override { return Unlink(name, AT_REMOVEDIR); }
  absl::Status Sync() override {
    return fsync(fd()) == 0 ? absl::OkStatus() : OsError(path_, "sync", errno);
  }

 private:
  RealFolder(std::string path, DIR* stream) : path_(std::move(path)), stream_(stream) {}
  int fd() const { return dirfd(stream_); }
  absl::Status Unlink(const std::string& name, int flags) {
    return unlinkat(fd(), name.c_str(), flags) == 0
               ? absl::OkStatus()
               : OsError(JoinPath(path_, name), "remove", errno);
  }

  const std::string path_;
  DIR* const stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Folder>> OpenRealFolder(const std::string& path) {
  Descriptor folder(open(path.c_str(), kOpenFolder));
  if (folder.fd() < 0) return OsError(path, "open", errno);
  return RealFolder::Make(path, std::move(folder));
}

}  // namespace apogee::checkpoint
