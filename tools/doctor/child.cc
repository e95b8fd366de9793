// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "apogee/core/error.h"

namespace apogee::tools::doctor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kGraceSeconds = 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The output of a program. Don't wait for its end: a process left over may hold it open.
class Output {
 public:
  Output() {
    APOGEE_CHECK(pipe2(ends_.data(), O_CLOEXEC) == 0, "a pipe: ", std::strerror(errno));
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Output() {
    close(ends_[0]);
    CloseWriter();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void CloseWriter() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  void Read() {
    constexpr size_t kKept = 16 << 10;
    std::array<char, 4096> buffer;
    // Bounded, since a program may write faster than this reads.
    for (int i = 0; i < 256; ++i) {
      const ssize_t count = read(ends_[0], buffer.data(), buffer.size());
      if (count <= 0) break;
      text_.append(buffer.data(), static_cast<size_t>(count));
      if (text_.size() > 2 * kKept) text_.erase(0, text_.size() - kKept);
    }
  }
  std::string Take() {
    Read();
    return std::move(text_);
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
  std::string text_;
};

// The children of this process, from /proc/PID/stat: "7 (a name) S 5 ...".
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t end = line.rfind(')');
    if (end == std::string::npos) continue;
    std::istringstream rest(line.substr(end + 1));
    char state = 0;
    pid_t parent = 0;
    if (rest >> state >> parent && parent == getpid()) children.push_back(std::stoi(name));
  }
  return children;
}

// Repeats until there are no children: when a child ends, this process adopts that child's
// children.
void EndChildren() {
  for (auto children = Children(); !children.empty(); children = Children()) {
    for (const pid_t child : children) kill(child, SIGKILL);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
}

int Start(const std::vector<std::string>& command, Output& out, Output& err, pid_t& child) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out.writer(), 1);
  posix_spawn_file_actions_adddup2(&files, err.writer(), 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error =
      posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

std::string Describe(const ChildResult& child, double limit_seconds) {
  std::ostringstream text;
  switch (child.end) {
    case ChildResult::kExited:
      text << "exited with " << child.code;
      break;
    case ChildResult::kSignalled:
      text << "was ended by signal " << child.code << " (" << strsignal(child.code) << ")";
      break;
    case ChildResult::kTimedOut:
      text << "did not end within " << limit_seconds << " s";
      break;
    case ChildResult::kNotStarted:
      text << "could not be started: " << std::strerror(child.code);
      break;
  }
  return text.str();
}

ChildResult RunChild(const std::vector<std::string>& command, double limit_seconds) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Output out, err;
  ChildResult result;
  pid_t child = 0;
  const auto start = Clock::now();
  if (const int error = Start(command, out, err, child)) {
    result.code = error;
    return result;
  }
  out.CloseWriter();
  err.CloseWriter();
  bool asked = false;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const double seconds = SecondsSince(start);
    if (seconds > limit_seconds && !asked) {
      killpg(child, SIGTERM);
      asked = true;
    }
    if (seconds > limit_seconds + kGraceSeconds) {
      killpg(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    poll(nullptr, 0, 5);
    out.Read();
    err.Read();
  }
  result.seconds = SecondsSince(start);
  EndChildren();
  result.out = out.Take();
  result.err = err.Take();
  if (asked) {
    result.end = ChildResult::kTimedOut;
  } else if (WIFSIGNALED(status)) {
    result.end = ChildResult::kSignalled;
    result.code = WTERMSIG(status);
  } else {
    result.end = ChildResult::kExited;
    result.code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace apogee::tools::doctor
