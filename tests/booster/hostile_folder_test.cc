// SPDX-License-Identifier: Apache-2.0

// A folder of checkpoints in which other things lie: links that lead elsewhere, pipes, devices,
// files and folders in the place of others. Nothing outside the folder is touched, and what resume
// passes over never stops the run that saves that step again.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/runs/small_run.h"

namespace apogee {
namespace hostile_folder_test {

namespace fs = std::filesystem;
using apogee::testing::OnSmallRun;
using apogee::testing::ReadFile;
using apogee::testing::SmallRun;
using apogee::testing::TempDir;
using checkpoint::RealFileSystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kStep2 = "step-00000002";

class HostileFolderTest : public ::testing::Test {
 protected:
  HostileFolderTest() {
    precious_.Write("a", "kept");
    precious_.Write("below/b", "kept");
  }

  // One step, saved as that number; what the save told.
  std::vector<std::string> Save(int64_t step, int64_t keep = 2) {
    std::vector<std::string> notices;
    const absl::Status saved = OnSmallRun(1, [&](SmallRun& run) {
      const absl::Status resumed = run.booster.resume(folder_).status();
      if (!resumed.ok() && !absl::IsNotFound(resumed) && !absl::IsDataLoss(resumed)) return resumed;
      run.Step();
      return run.booster.save_training_state(
          folder_, {.step = step},
          {.keep = keep, .notice = [&](const std::string& text) { notices.push_back(text); }});
    });
    EXPECT_EQ(saved, absl::OkStatus());
    return notices;
  }
  // What resume finds, and what it tells.
  int64_t Resume(std::vector<std::string>& notices) {
    int64_t step = -1;
    const absl::Status status = OnSmallRun(1, [&](SmallRun& run) {
      const auto resumed = run.booster.resume(folder_);
      if (!resumed.ok()) return resumed.status();
      step = resumed->position.step;
      notices = resumed->notices;
      return absl::OkStatus();
    });
    EXPECT_EQ(status, absl::OkStatus());
    return step;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  void ExpectPreciousIsWhole() const {
    EXPECT_EQ(ReadFile(precious_ / "a"), "kept");
    EXPECT_EQ(ReadFile(precious_ / "below/b"), "kept");
  }

  // Step 2 is spoilt by `spoil`: resume goes back to step 1, and step 2 is saved again, beside what
  // was there.
  void ExpectStepTwoIsSavedAgain(const std::string& what, const std::function<void()>& spoil) {
    SCOPED_TRACE(what);
    fs::remove_all(folder_);
    ASSERT_THAT(Save(1), IsEmpty());
    ASSERT_THAT(Save(2), IsEmpty());
    spoil();
    std::vector<std::string> notices;
    EXPECT_EQ(Resume(notices), 1);
    EXPECT_THAT(notices, ElementsAre(HasSubstr("step-00000002 was passed over: ")));
    EXPECT_THAT(
        Save(2),
        ElementsAre(AllOf(HasSubstr("step-00000002 was damaged and is now damaged-step-00000002"),
                          HasSubstr(kStep2))));
    EXPECT_THAT(Names(), ElementsAre("damaged-step-00000002", "step-00000001", kStep2));
    EXPECT_EQ(Resume(notices), 2);
    EXPECT_THAT(notices, IsEmpty());
    ExpectPreciousIsWhole();
  }

  TempDir dir_, precious_;
  const std::string folder_ = dir_ / "checkpoints";
};

void MakeSocket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
}

// What may lie in the place of a file or folder; false where this process may not make it.
struct Thing {
  const char* name;
  std::function<bool(const std::string& path)> make;
};
std::vector<Thing> Things(const std::string& elsewhere) {
  return {
      {"link", [=](const auto& path) { return fs::create_symlink(elsewhere, path), true; }},
      {"dangling link", [](const auto& path) { return fs::create_symlink("none", path), true; }},
      {"link to itself", [](const auto& path) { return fs::create_symlink(path, path), true; }},
      {"FIFO", [](const auto& path) { return mkfifo(path.c_str(), 0666) == 0; }},
      {"folder", [](const auto& path) { return fs::create_directory(path); }},
      {"socket", [](const auto& path) { return MakeSocket(path), true; }},
      {"device", [](const auto& path) {
         return mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 5)) == 0;  // /dev/zero
       }}};
}

TEST_F(HostileFolderTest, RetentionFollowsNoLink) {
  ASSERT_THAT(Save(1), IsEmpty());
  ASSERT_THAT(Save(2), IsEmpty());
  // An archive, one of whose checkpoints is linked in.
  fs::rename(folder_ + "/" + kStep2, dir_ / "archived");
  fs::create_directory_symlink(dir_ / "archived", folder_ + "/" + kStep2);
  for (const char* name : {".tmp-foo", ".trash-foo", ".trash-step-00000001"}) {
    fs::create_directory_symlink(precious_.path(), folder_ + "/" + name);
  }
  fs::create_symlink(precious_ / "a", folder_ + "/.tmp-to-a-file");
  fs::create_symlink("none", folder_ + "/.tmp-dangling");
  dir_.Write("checkpoints/.tmp-file", "x");
  ASSERT_EQ(mkfifo((folder_ + "/.tmp-fifo").c_str(), 0666), 0);
  dir_.Write("checkpoints/.tmp-deep/below/c", "x");
  fs::create_directory_symlink(precious_.path(), folder_ + "/.tmp-deep/link");
  fs::create_directory_symlink(precious_.path(), folder_ + "/.tmp-deep/below/link");
  fs::create_symlink(precious_ / "a", folder_ + "/.tmp-deep/below/a");
  for (const int64_t step : {3, 4}) EXPECT_THAT(Save(step), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("step-00000003", "step-00000004"));
  ExpectPreciousIsWhole();
  EXPECT_TRUE(fs::exists(dir_ / "archived/manifest.json"));
  EXPECT_TRUE(fs::exists(dir_ / "archived/rank-00000.safetensors"));
}

TEST_F(HostileFolderTest, OtherThingsInThePlaceOfAFile) {
  for (const char* file : {"rank-00000.safetensors", "manifest.json"}) {
    for (const Thing& thing : Things(precious_ / "a")) {
      const std::string path = folder_ + "/" + kStep2 + "/" + file;
      ExpectStepTwoIsSavedAgain(std::string(thing.name) + " in the place of " + file, [&] {
        fs::remove(path);
        if (!thing.make(path)) fs::create_directory(path);  // a device needs rights
      });
    }
  }
  // A link to the very bytes is none of the checkpoint's files either: they may change behind it.
  ExpectStepTwoIsSavedAgain("a link to the bytes", [&] {
    const std::string path = folder_ + "/" + kStep2 + "/rank-00000.safetensors";
    fs::rename(path, dir_ / "bytes");
    fs::create_symlink(dir_ / "bytes", path);
  });
}

TEST_F(HostileFolderTest, OtherThingsInThePlaceOfACheckpoint) {
  const std::string path = folder_ + "/" + kStep2;
  for (const std::string& elsewhere : {precious_ / "a", precious_.path()}) {
    for (const Thing& thing : Things(elsewhere)) {
      ExpectStepTwoIsSavedAgain(std::string(thing.name) + " in the place of the folder", [&] {
        fs::remove_all(path);
        if (!thing.make(path)) fs::create_directory(path);
      });
    }
  }
  ExpectStepTwoIsSavedAgain("a plain file", [&] {
    fs::remove_all(path);
    dir_.Write(std::string("checkpoints/") + kStep2, "text");
  });
}

TEST_F(HostileFolderTest, ACheckpointOfAnotherStep) {
  const std::string path = folder_ + "/" + kStep2;
  ExpectStepTwoIsSavedAgain("step 1's", [&] {
    fs::remove_all(path);
    fs::copy(folder_ + "/step-00000001", path);
  });
  // Of the same format, but no training state: digests cannot tell.
  ExpectStepTwoIsSavedAgain("no training state", [&] {
    fs::remove_all(path);
    OkOrThrow(checkpoint::SaveCheckpoint({RealFileSystem(), path}, {{{"a", "b"}}, {}}, nullptr));
  });
  ExpectStepTwoIsSavedAgain("no training state but a step", [&] {
    fs::remove_all(path);
    OkOrThrow(checkpoint::SaveCheckpoint({RealFileSystem(), path}, {{{"step", "2"}}, {}}, nullptr));
  });
}

// What was set aside is never deleted for what is set aside later.
TEST_F(HostileFolderTest, WhatWasSetAsideStays) {
  ASSERT_THAT(Save(1), IsEmpty());
  fs::create_directory_symlink(precious_.path(), folder_ + "/damaged-step-00000002");
  for (const char* aside : {"damaged-step-00000002-2", "damaged-step-00000002-3"}) {
    dir_.Write(std::string("checkpoints/") + kStep2, aside);
    EXPECT_THAT(Save(2), ElementsAre(HasSubstr(std::string("is now ") + aside + ": ")));
    EXPECT_EQ(ReadFile(folder_ + "/" + aside), aside);
    fs::remove_all(folder_ + "/" + kStep2);
  }
  EXPECT_TRUE(fs::is_symlink(folder_ + "/damaged-step-00000002"));
  ExpectPreciousIsWhole();
}

TEST_F(HostileFolderTest, TheFolderItself) {
  // A link to a folder is the user's choice; anything else is told before training goes on.
  fs::create_directory(dir_ / "disk");
  fs::create_directory_symlink(dir_ / "disk", folder_);
  EXPECT_THAT(Save(1), IsEmpty());
  EXPECT_TRUE(fs::exists(dir_ / "disk/step-00000001/manifest.json"));
  for (const Thing& thing : Things(precious_ / "a")) {
    fs::remove_all(folder_);
    if (std::string(thing.name) == "folder" || !thing.make(folder_)) continue;
    const absl::Status status = OnSmallRun(1, [&](SmallRun& run) {
      run.Step();
      return run.booster.save_training_state(folder_, {.step = 1});
    });
    EXPECT_FALSE(status.ok()) << thing.name;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(folder_), HasSubstr("choose another folder")))
        << thing.name;
  }
  ExpectPreciousIsWhole();
}

}  // namespace hostile_folder_test
}  // namespace apogee
