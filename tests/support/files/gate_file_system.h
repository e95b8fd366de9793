// SPDX-License-Identifier: Apache-2.0

// The real file system behind a gate: while it is closed, Create waits.
//
//   auto files = std::make_shared<GateFileSystem>();
//   files->Close();
//   ... start a save in the background, change the weights ...
//   files->Open();
#ifndef APOGEE_TESTS_SUPPORT_FILES_GATE_FILE_SYSTEM_H_
#define APOGEE_TESTS_SUPPORT_FILES_GATE_FILE_SYSTEM_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::testing {

class GateFileSystem : public checkpoint::FileSystem {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> Create(
      const std::string& path) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return open_; });
    }
    return real_.Create(path);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> Open(const std::string& path) override {
    return real_.Open(path);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenThroughLinks(
      const std::string& path) override {
    return real_.OpenThroughLinks(path);
  }
  absl::Status MakeDir(const std::string& path) override { return real_.MakeDir(path); }
  absl::StatusOr<std::unique_ptr<checkpoint::Folder>> OpenFolder(const std::string& path) override {
    return real_.OpenFolder(path);
  }
  absl::StatusOr<checkpoint::PathKind> KindOf(const std::string& path) override {
    return real_.KindOf(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    const int64_t bytes = free_bytes;
    return bytes >= 0 ? bytes : real_.FreeBytes(path);
  }
  // The result of FreeBytes, unless negative. All ranks set it.
  std::atomic<int64_t> free_bytes = -1;

 private:
  checkpoint::FileSystem& real_ = *checkpoint::RealFileSystem();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_GATE_FILE_SYSTEM_H_
