// SPDX-License-Identifier: Apache-2.0

// FileSystem: the few file operations that checkpoints are made of, behind one interface, so that
// tests can fail or end the process at any of them and replay what a power cut would leave.
//
//   FileSystem& files = *RealFileSystem();
//   APOGEE_ASSIGN_OR_RETURN(auto file, files.Create("dir/a"));
//   APOGEE_RETURN_IF_ERROR(file->Append(bytes));
//   APOGEE_RETURN_IF_ERROR(file->Sync());        // the bytes survive a power cut ...
//   APOGEE_RETURN_IF_ERROR(file->Close());
//   APOGEE_RETURN_IF_ERROR(files.SyncDir("dir"));    // ... and so does the name
//
// Nothing is durable before Sync of the file and SyncDir of its folder. Every error names the path
// and what the operating system said: ResourceExhausted for a full disk or quota, NotFound for a
// missing path, AlreadyExists, PermissionDenied (also a read-only file system), else DataLoss.
// Calls may come from several threads.
#ifndef APOGEE_CHECKPOINT_FILE_SYSTEM_H_
#define APOGEE_CHECKPOINT_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apogee/checkpoint/folder.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // All bytes, or an error.
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  virtual absl::Status Sync() = 0;
  // Without it the file is closed, and errors of closing are lost, on destruction.
  virtual absl::Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t size() const = 0;
  // Exactly these bytes, or DataLoss that names the offset.
  virtual absl::Status Read(int64_t offset, std::span<std::byte> to) const = 0;
};

// What a path names, itself: a link is a link, wherever it leads.
enum class PathKind { kNothing, kFile, kFolder, kLink, kOther };
// "file", "symbolic link"; kOther: "FIFO, socket or device".
const char* PathKindName(PathKind kind);

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // A new file; AlreadyExists when there is something of that name. The folder that it is in is
  // one, not a link to one: somebody may have exchanged it since it was made.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // A regular file, not one behind a symbolic link; anything else is InvalidArgument, without
  // waiting for a pipe or touching a device.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // The same, but symbolic links are followed.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenThroughLinks(
      const std::string& path) = 0;
  virtual absl::Status MakeDir(const std::string& path) = 0;
  // Links are followed. NotFound also for what is no folder.
  virtual absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& path) = 0;
  virtual absl::StatusOr<PathKind> KindOf(const std::string& path) = 0;
  // What an unprivileged process can still write there.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;

  // Of the folder at `path`.
  absl::StatusOr<std::vector<std::string>> List(const std::string& path);
  absl::Status SyncDir(const std::string& path);
};

// The machine's. Shared, without state.
const std::shared_ptr<FileSystem>& RealFileSystem();

// "dir/name".
std::string JoinPath(const std::string& dir, const std::string& name);
// The folder above: "." for a name alone; and the name in it.
std::string ParentOf(const std::string& path);
std::string NameOf(const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILE_SYSTEM_H_
