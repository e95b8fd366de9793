// What the real file system says when it cannot. Full and read-only disks: scripts/bad_disks.sh.
#include "apogee/checkpoint/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "apogee/tests/support/temp_dir.h"

namespace apogee::checkpoint {
namespace {

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
  EXPECT_THAT(Message(nowhere), AllOf(StartsWith(dir / "none/such"),
                                      HasSubstr("make the folder in one that is not there")));
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

}  // namespace
}  // namespace apogee::checkpoint
