// SPDX-License-Identifier: Apache-2.0

// Folders by descriptors: a removed entry lies in the folder that was opened, even if others change
// the path meanwhile, and never behind a link or on another device.
#include "apogee/checkpoint/files/folder.h"

#include <fcntl.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace folder_test {

namespace fs = std::filesystem;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() { precious_.Write("a", "kept"); }
  std::unique_ptr<Folder> Open(const std::string& name) const {
    return ValueOrThrow(RealFileSystem()->OpenFolder(dir_ / name));
  }

  TempDir dir_, precious_;
};

TEST_F(FolderTest, AnOpenFolderStaysTheOneThatWasOpened) {
  dir_.Write("run/x/a", "old");
  const std::unique_ptr<Folder> folder = Open("run"), inner = *folder->OpenFolder("x");
  fs::rename(dir_ / "run", dir_ / "moved");
  fs::create_directory(dir_ / "run");
  fs::create_directory_symlink(precious_.path(), dir_ / "run/x");
  EXPECT_EQ(RemoveAll(*inner, "a"), absl::OkStatus());
  EXPECT_EQ(RemoveAll(*folder, "x"), absl::OkStatus());
  EXPECT_TRUE(fs::is_empty(dir_ / "moved"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "run/x"));
  EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
}

// Another thread exchanges the folder for a link all the time.
TEST_F(FolderTest, AFolderThatBecomesALinkMeanwhile) {
  fs::create_directory(dir_ / "run");
  const std::unique_ptr<Folder> folder = Open("run");
  fs::create_directory_symlink(precious_.path(), dir_ / "link");
  std::atomic<bool> stop = false;
  int64_t removed = 0;
  std::thread exchanger([&] {
    // Whichever of the two has the name at the moment.
    const std::string a = dir_ / "link", b = dir_ / "run/x";
    while (!stop) renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < end) {
    std::error_code error;
    fs::create_directory(dir_ / "run/x", error);
    removed += RemoveAll(*folder, "x").ok() ? 1 : 0;
    if (!fs::exists(fs::symlink_status(dir_ / "link"))) {
      fs::create_directory_symlink(precious_.path(), dir_ / "link", error);
    }
  }
  stop = true;
  exchanger.join();
  EXPECT_GT(removed, 0);
  EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
}

TEST_F(FolderTest, WhatIsNoFolder) {
  fs::create_directory(dir_ / "run");
  dir_.Write("run/file", "x");
  fs::create_symlink(precious_ / "a", dir_ / "run/link");
  fs::create_directory_symlink(precious_.path(), dir_ / "run/folder_link");
  ASSERT_EQ(mkfifo((dir_ / "run/fifo").c_str(), 0666), 0);
  const std::unique_ptr<Folder> folder = Open("run");
  for (const char* name : {"file", "link", "folder_link", "fifo"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(folder->OpenFolder(name).status())) << name;
    EXPECT_EQ(RemoveAll(*folder, name), absl::OkStatus()) << name;
  }
  EXPECT_TRUE(absl::IsNotFound(folder->OpenFolder("none").status()));
  EXPECT_EQ(RemoveAll(*folder, "none"), absl::OkStatus());
  EXPECT_THAT(*folder->List(), IsEmpty());
  EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
}

TEST_F(FolderTest, RenameOverwritesNothing) {
  fs::create_directories(dir_ / "run/a");
  fs::create_symlink("none", dir_ / "run/dangling");
  const std::unique_ptr<Folder> folder = Open("run");
  EXPECT_TRUE(absl::IsAlreadyExists(folder->Rename("a", "dangling")));
  EXPECT_TRUE(absl::IsNotFound(folder->Rename("none", "b")));
  EXPECT_EQ(folder->Rename("a", "b"), absl::OkStatus());
  EXPECT_THAT(*folder->List(), ElementsAre("b", "dangling"));
}

TEST_F(FolderTest, TooManyFoldersInOneAnother) {
  std::string path = "run/x";
  for (int i = 0; i < 40; ++i) path += "/x";
  fs::create_directories(dir_ / path);
  EXPECT_THAT(Message(RemoveAll(*Open("run"), "x")), HasSubstr("more than 32 folders"));
}

// Exit code of a child in which mounts are its own; 77 where it may not mount.
int WithMounts(const std::function<bool()>& mount, const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    const bool may = unshare(CLONE_NEWNS) == 0 &&
                     ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 && mount();
    _exit(!may ? 77 : check() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(FolderTest, WhatIsMountedStays) {
  for (const bool bind : {false, true}) {
    fs::create_directories(dir_ / "run/x/mounted");
    dir_.Write("run/x/z", "goes");
    const std::string at = dir_ / "run/x/mounted";
    const int code = WithMounts(
        [&] {
          return bind ? mount(precious_.path().c_str(), at.c_str(), nullptr, MS_BIND, nullptr) == 0
                      : mount("none", at.c_str(), "tmpfs", 0, nullptr) == 0;
        },
        [&] {
          std::ofstream(at + "/b") << "kept";
          const absl::Status status = RemoveAll(*Open("run"), "x");
          EXPECT_THAT(Message(status), AllOf(HasSubstr(at), HasSubstr("is mounted there")));
          EXPECT_EQ(ReadFile(at + "/b"), "kept");
          EXPECT_FALSE(fs::exists(dir_ / "run/x/z"));
          return !HasFailure();
        });
    if (code == 77) GTEST_SKIP() << "this process may not mount";
    EXPECT_EQ(code, 0) << (bind ? "a folder of the same device" : "another device");
  }
  EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
}

}  // namespace folder_test
}  // namespace apogee::checkpoint
