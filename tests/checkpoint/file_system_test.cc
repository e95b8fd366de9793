// SPDX-License-Identifier: Apache-2.0

// What the real file system says when it cannot. Full and read-only disks: scripts/bad_disks.sh.
#include "apogee/checkpoint/files/file_system.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace file_system_test {

using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the child wrote to the pipe, and how it ended.
struct Told {
  std::string text;
  int status = 0;
};

// Runs `fn` in a child, with a limit on the size of files: it is for good.
template <typename Fn>
Told WithFileLimit(rlim_t bytes, const Fn& fn) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text = fn();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  Told told;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    told.text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  waitpid(child, &told.status, 0);
  return told;
}

TEST(FileSystemTest, ALimitOnFilesIsAnErrorAndNoSignal) {
  const TempDir dir;
  const std::string path = dir / "a", bytes(5000, 'x');
  const Told told = WithFileLimit(2000, [&] {
    auto file = ValueOrThrow(RealFileSystem()->Create(path));
    absl::Status status = file->Append(std::as_bytes(std::span(bytes)));
    // Nothing is left pending, and the signal is as deliverable as before.
    sigset_t pending, blocked;
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    const bool clean = !sigismember(&pending, SIGXFSZ) && !sigismember(&blocked, SIGXFSZ);
    return std::string(clean ? "clean, " : "") +
           (absl::IsResourceExhausted(status) ? "exhausted, " : "") + Message(status);
  });
  EXPECT_TRUE(WIFEXITED(told.status) && WEXITSTATUS(told.status) == 0)
      << "ended with status " << told.status;
  EXPECT_THAT(
      told.text,
      AllOf(StartsWith("clean, exhausted, " + path + ": cannot write 3000 bytes"),
            HasSubstr("(a file may have 2000 here, see ulimit -f)"), HasSubstr("File too large")));
}

TEST(FileSystemTest, ErrorsNameThePathAndTheReason) {
  const TempDir dir;
  FileSystem& files = *RealFileSystem();
  const absl::Status nowhere = files.MakeDir(dir / "none/such");
  EXPECT_TRUE(absl::IsNotFound(nowhere));
  EXPECT_THAT(Message(nowhere),
              AllOf(StartsWith(dir / "none/such"), HasSubstr("make the folder in a missing one")));
  dir.Write("file", "abc");
  const absl::Status inside = files.MakeDir(dir / "file/such");
  EXPECT_TRUE(absl::IsNotFound(inside));
  EXPECT_THAT(Message(inside), HasSubstr("Not a directory"));
  EXPECT_TRUE(absl::IsAlreadyExists(files.Create(dir / "file").status()));
  const auto file = ValueOrThrow(files.Open(dir / "file"));
  std::byte bytes[4];
  EXPECT_THAT(Message(file->Read(0, bytes)),
              AllOf(StartsWith(dir / "file"), HasSubstr("byte 3: the file ends there")));
}

// Neither waited for nor touched; of links only those that are asked for are followed.
TEST(FileSystemTest, OpensOnlyRegularFiles) {
  const TempDir dir;
  FileSystem& files = *RealFileSystem();
  dir.Write("file", "abc");
  std::filesystem::create_symlink("file", dir / "link");
  std::filesystem::create_symlink("none", dir / "dangling");
  std::filesystem::create_directory(dir / "folder");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0666), 0);
  std::filesystem::create_symlink("fifo", dir / "to_fifo");
  std::filesystem::create_symlink("/dev/zero", dir / "to_device");
  EXPECT_EQ(ValueOrThrow(files.Open(dir / "file"))->size(), 3);
  const absl::Status link = files.Open(dir / "link").status();
  EXPECT_TRUE(absl::IsInvalidArgument(link));
  EXPECT_EQ(Message(link), dir / "link: is a symbolic link, not a regular file");
  EXPECT_EQ(ValueOrThrow(files.OpenThroughLinks(dir / "link"))->size(), 3);
  EXPECT_TRUE(absl::IsNotFound(files.OpenThroughLinks(dir / "dangling").status()));
  for (const char* name : {"folder", "fifo", "to_fifo", "to_device"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(files.Open(dir / name).status())) << name;
    const absl::Status status = files.OpenThroughLinks(dir / name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("not a regular file"));
  }
  const std::vector<std::pair<const char*, PathKind>> kinds = {
      {"file", PathKind::kFile},     {"folder", PathKind::kFolder}, {"link", PathKind::kLink},
      {"dangling", PathKind::kLink}, {"fifo", PathKind::kOther},    {"none", PathKind::kNothing},
      {"file/x", PathKind::kNothing}};
  for (const auto& [name, kind] : kinds) EXPECT_EQ(*files.KindOf(dir / name), kind) << name;
}

// A temporary folder that was exchanged for a link takes no files elsewhere.
TEST(FileSystemTest, CreatesNothingBehindALink) {
  const TempDir dir, elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.path(), dir / "link");
  EXPECT_FALSE(RealFileSystem()->Create(dir / "link/file").ok());
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
  std::filesystem::create_symlink(elsewhere / "none", dir / "dangling");
  EXPECT_TRUE(absl::IsAlreadyExists(RealFileSystem()->Create(dir / "dangling").status()));
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
}

}  // namespace file_system_test
}  // namespace apogee::checkpoint
