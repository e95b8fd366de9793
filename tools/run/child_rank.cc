// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/run/child_rank.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "apogee/comm/tcp/job.h"

namespace apogee::tools {
namespace {

bool IsOfAJob(const std::string& setting) {
  const auto& names = comm::tcp::JobVariables();
  return std::find(names.begin(), names.end(), setting.substr(0, setting.find('='))) != names.end();
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs between fork and exec, so it may only make async-signal-safe calls. Returns errno.
int Become(const std::vector<char*>& arguments, const std::vector<char*>& environment, pid_t parent,
           int inherited) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);  // the parent ended before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, 0);
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
  execvpe(arguments[0], arguments.data(), environment.data());
  return errno;
}

}  // namespace

absl::StatusOr<pid_t> StartRank(const std::vector<std::string>& command,
                                const std::vector<std::string>& settings, int inherited) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!IsOfAJob(*variable)) variables.emplace_back(*variable);
  }
  variables.insert(variables.end(), settings.begin(), settings.end());
  const std::vector<char*> arguments = Pointers(command), environment = Pointers(variables);
  // The child reports through this pipe why exec failed; on success exec closes it.
  std::array<int, 2> report;
  if (pipe2(report.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "a pipe");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const int error = Become(arguments, environment, parent, inherited);
    const ssize_t written = write(report[1], &error, sizeof(error));
    _exit(written == sizeof(error) ? 127 : 126);
  }
  const int fork_error = errno;
  close(report[1]);
  int error = 0;
  const ssize_t count = child > 0 ? read(report[0], &error, sizeof(error)) : 0;
  close(report[0]);
  if (child < 0) return absl::ErrnoToStatus(fork_error, "a process cannot be started");
  if (count == 0) return child;
  waitpid(child, nullptr, 0);
  return absl::ErrnoToStatus(error, "cannot start '" + command[0] + "'");
}

int ExitCodeOf(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string DescribeEnd(int status) {
  if (!WIFSIGNALED(status)) return internal::Concat("exited with ", WEXITSTATUS(status));
  return internal::Concat("was ended by signal ", WTERMSIG(status), " (",
                          strsignal(WTERMSIG(status)), ")");
}

}  // namespace apogee::tools
