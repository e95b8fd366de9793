// SPDX-License-Identifier: Apache-2.0

// KillingFileSystem: the real file system, but the process ends before, in the middle of, or after
// the k-th change, as if by SIGKILL: no destructor runs, nothing is flushed.
//
//   auto files = std::make_shared<KillingFileSystem>(KillingFileSystem::When::kBefore, 7);
//   ... in a forked child: the process ends with exit code kKilled at the seventh change ...
//
// Reads are not counted. If several threads make changes, their order is not defined.
#ifndef APOGEE_TESTS_SUPPORT_FILES_KILLING_FILE_SYSTEM_H_
#define APOGEE_TESTS_SUPPORT_FILES_KILLING_FILE_SYSTEM_H_

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::testing {

class KillingFileSystem : public checkpoint::FileSystem {
 public:
  // kMiddle: half of the bytes of a write are written; other changes as kBefore.
  enum class When { kBefore, kMiddle, kAfter };
  static constexpr int kKilled = 77;

  KillingFileSystem(When when, int change) : when_(when), change_(change) {}

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> Create(
      const std::string& path) override {
    std::unique_ptr<checkpoint::WritableFile> file;
    APOGEE_RETURN_IF_ERROR(Change([&]() -> absl::Status {
      APOGEE_ASSIGN_OR_RETURN(file, real_->Create(path));
      return absl::OkStatus();
    }));
    return std::make_unique<Writer>(*this, std::move(file));
  }
  absl::Status MakeDir(const std::string& path) override {
    return Change([&] { return real_->MakeDir(path); });
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> Open(const std::string& path) override {
    return real_->Open(path);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenThroughLinks(
      const std::string& path) override {
    return real_->OpenThroughLinks(path);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::Folder>> OpenFolder(const std::string& path) override {
    APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Folder> folder, real_->OpenFolder(path));
    return std::make_unique<KillingFolder>(*this, std::move(folder));
  }
  absl::StatusOr<checkpoint::PathKind> KindOf(const std::string& path) override {
    return real_->KindOf(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return real_->FreeBytes(path);
  }

 private:
  using Operation = std::function<absl::Status()>;

  class Writer : public checkpoint::WritableFile {
   public:
    Writer(KillingFileSystem& files, std::unique_ptr<checkpoint::WritableFile> file)
        : files_(files), file_(std::move(file)) {}
    absl::Status Append(std::span<const std::byte> bytes) override {
      return files_.Change([&] { return file_->Append(bytes); },
                           [&] { return file_->Append(bytes.first(bytes.size() / 2)); });
    }
    absl::Status Sync() override {
      return files_.Change([&] { return file_->Sync(); });
    }
    absl::Status Close() override {
      return files_.Change([&] { return file_->Close(); });
    }

   private:
    KillingFileSystem& files_;
    std::unique_ptr<checkpoint::WritableFile> file_;
  };

  class KillingFolder : public checkpoint::Folder {
   public:
    KillingFolder(KillingFileSystem& files, std::unique_ptr<checkpoint::Folder> folder)
        : files_(files), folder_(std::move(folder)) {}
    absl::StatusOr<std::vector<std::string>> List() override { return folder_->List(); }
    absl::StatusOr<std::unique_ptr<checkpoint::Folder>> OpenFolder(
        const std::string& name) override {
      APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Folder> inner, folder_->OpenFolder(name));
      return std::make_unique<KillingFolder>(files_, std::move(inner));
    }
    absl::Status Rename(const std::string& from, const std::string& to) override {
      return files_.Change([&] { return folder_->Rename(from, to); });
    }
    absl::Status RemoveFile(const std::string& name) override {
      return files_.Change([&] { return folder_->RemoveFile(name); });
    }
    absl::Status RemoveDir(const std::string& name) override {
      return files_.Change([&] { return folder_->RemoveDir(name); });
    }
    absl::Status Sync() override {
      return files_.Change([&] { return folder_->Sync(); });
    }

   private:
    KillingFileSystem& files_;
    std::unique_ptr<checkpoint::Folder> folder_;
  };

  absl::Status Change(const Operation& whole, const Operation& half = nullptr) {
    if (++count_ != change_) return whole();
    if (when_ == When::kAfter) whole().IgnoreError();
    if (when_ == When::kMiddle && half) half().IgnoreError();
    _exit(kKilled);
  }

  const std::shared_ptr<checkpoint::FileSystem> real_ = checkpoint::RealFileSystem();
  const When when_;
  const int change_;
  std::atomic<int> count_ = 0;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_KILLING_FILE_SYSTEM_H_
