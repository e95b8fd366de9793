// SPDX-License-Identifier: Apache-2.0

#include "child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>

namespace outside {
namespace {

// False: the time is over before the process closed its end.
bool ReadAll(int from, double seconds, std::string& output) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd wanted{.fd = from, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&wanted, 1, static_cast<int>(left.count())) == 0) return false;
    char text[4096];
    const ssize_t size = read(from, text, sizeof(text));
    if (size <= 0) return true;
    output.append(text, static_cast<size_t>(size));
  }
}

}  // namespace

std::string Ended::Description() const {
  std::string text;
  if (timed_out) {
    text = "still ran after the time it had";
  } else if (WIFSIGNALED(status)) {
    text = "ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  } else {
    text = "exit code " + std::to_string(WEXITSTATUS(status));
  }
  return output.empty() ? text : text + ": " + output;
}

Ended RunAgain(const std::string& argument, double seconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process can be started");
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execl("/proc/self/exe", "misuse", argument.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  Ended ended;
  ended.timed_out = !ReadAll(ends[0], seconds, ended.output);
  if (ended.timed_out) kill(child, SIGKILL);
  close(ends[0]);
  waitpid(child, &ended.status, 0);
  return ended;
}

}  // namespace outside
