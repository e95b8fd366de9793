// SPDX-License-Identifier: Apache-2.0

// FileSystem: the few file operations that checkpoints need, behind one interface. So tests can
// make any of them fail, end the process there, and replay the result of a power cut.
//
//   FileSystem& files = *RealFileSystem();
//   APOGEE_ASSIGN_OR_RETURN(auto file, files.Create("dir/a"));
//   APOGEE_RETURN_IF_ERROR(file->Append(bytes));
//   APOGEE_RETURN_IF_ERROR(file->Sync());        // the bytes survive a power cut ...
//   APOGEE_RETURN_IF_ERROR(file->Close());
//   APOGEE_RETURN_IF_ERROR(files.SyncDir("dir"));    // ... and so does the name
//
// Nothing is durable before Sync of the file and SyncDir of its folder. Every error names the path
// and the operating system's message: ResourceExhausted for a full disk or quota, NotFound for a
// missing path, AlreadyExists, PermissionDenied (also for a read-only file system), else DataLoss.
// Several threads may call.
#ifndef APOGEE_CHECKPOINT_FILES_FILE_SYSTEM_H_
#define APOGEE_CHECKPOINT_FILES_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/folder.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all bytes or returns an error.
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  virtual absl::Status Sync() = 0;
  // The destructor closes the file, too, but loses errors of closing.
  virtual absl::Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t size() const = 0;
  // Reads exactly these bytes, or returns DataLoss that names the offset.
  virtual absl::Status Read(int64_t offset, std::span<std::byte> to) const = 0;
};

// The kind of the thing that has a path. A link is a link, wherever it leads.
enum class PathKind { kNothing, kFile, kFolder, kLink, kOther };
// "file", "symbolic link"; kOther: "FIFO, socket or device".
const char* PathKindName(PathKind kind);

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Makes a new file; AlreadyExists if anything has that name. Its folder must be a folder and not
  // a link to one: a link may have replaced it since it was made.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens a regular file. Does not follow a symbolic link. Anything else is InvalidArgument,
  // without waiting for a pipe or touching a device.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // As Open, but follows symbolic links.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenThroughLinks(
      const std::string& path) = 0;
  virtual absl::Status MakeDir(const std::string& path) = 0;
  // Follows links. NotFound also if the path is not a folder.
  virtual absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& path) = 0;
  virtual absl::StatusOr<PathKind> KindOf(const std::string& path) = 0;
  // The bytes that an unprivileged process can still write there.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;

  // Open the folder at `path` and call its function.
  absl::StatusOr<std::vector<std::string>> List(const std::string& path);
  absl::Status SyncDir(const std::string& path);
};

// The machine's file system. Shared; it has no state.
const std::shared_ptr<FileSystem>& RealFileSystem();

// "dir/name".
std::string JoinPath(const std::string& dir, const std::string& name);
// The parent folder ("." for a bare name), and the name in it.
std::string ParentOf(const std::string& path);
std::string NameOf(const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILES_FILE_SYSTEM_H_
