// SPDX-License-Identifier: Apache-2.0

#include "apogee/tests/comm/faults/run_trial.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::comm::faults {
namespace {

using ::apogee::testing::ReadFile;
using ::apogee::testing::TempDir;

constexpr auto kPoll = std::chrono::milliseconds(2);
// For what mpirun removes when the processes have ended, before it counts as left.
constexpr double kCleanUpSeconds = 5;

// A small file of /proc; "" when its process is gone, or goes while it is read, which a stream
// takes for an error of the disk.
std::string ReadProc(const std::string& path) {
  const int file = open(("/proc/" + path).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string text(4096, '\0');
  const ssize_t bytes = read(file, text.data(), text.size());
  close(file);
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

// Whether the process runs, or is stopped: not one that only waits to be asked for its exit status.
bool Runs(pid_t process) {
  const std::string stat = ReadProc(std::to_string(process) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

// Processes of this trial: those whose command line has its folder.
std::vector<pid_t> ProcessesOf(const TempDir& folder) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (ReadProc(name + "/cmdline").find(folder.path()) == std::string::npos) continue;
    const pid_t process = std::stoi(name);
    if (process != getpid() && Runs(process)) found.push_back(process);
  }
  return found;
}

class Running {
 public:
  Running(const Trial& trial, const RunOptions& options, const TempDir& folder)
      : trial_(trial), options_(options), folder_(folder), started_(Now()) {
    std::filesystem::create_directory(folder_ / "tmp");
    std::string command;
    if (trial.OfProcesses()) {
      command = options.starters.at(trial.backend) + " " + std::to_string(trial.num_ranks) + " ";
    }
    command = "exec " + command + options.fault_ranks + " --trial " + trial.Name() + " --timeout " +
              std::to_string(options.timeout_seconds) + " --folder " + folder.path();
    child_ = fork();
    APOGEE_CHECK(child_ >= 0, "cannot start a process");
    if (child_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must not run on when the trials are stopped
    setpgid(0, 0);
    setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
    dup2(open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), STDERR_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }

  Outcome Wait() {
    Outcome outcome;
    const double deadline = started_ + options_.limit_seconds;
    double last_end = 0;
    int status = 0;
    bool ended = false;
    double polled = Now();
    while (!ended || last_end == 0) {
      std::this_thread::sleep_for(kPoll);
      outcome.standstill_seconds = std::max(outcome.standstill_seconds, Now() - polled);
      polled = Now();
      ended = ended || waitpid(child_, &status, WNOHANG) == child_;
      if (last_end == 0 && AllRanksEnded(ended)) last_end = Now();
      if (Now() > deadline) {
        outcome.hang = true;
        break;
      }
    }
    if (!ended) {
      kill(-child_, SIGKILL);
      KillRanks();
      waitpid(child_, &status, 0);
    }
    if (last_end == 0) last_end = Now();
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.events = ParseEvents(ReadFile(folder_ / "events"));
    outcome.err = ReadFile(folder_ / "stderr");
    for (const Event& event : outcome.events) {
      if (event.kind == "fault") outcome.end_seconds = last_end - event.seconds;
    }
    CollectLeft(outcome);
    KillRanks();
    return outcome;
  }

 private:
  bool AllRanksEnded(bool child_ended) {
    const size_t expected = trial_.OfProcesses() ? static_cast<size_t>(trial_.num_ranks) : 1;
    if (processes_.size() < expected) {
      for (const Event& event : ParseEvents(ReadFile(folder_ / "events"))) {
        if (event.kind == "process") processes_[event.rank] = std::stoi(event.text);
      }
    }
    if (processes_.size() < expected) return child_ended;
    for (const auto& [rank, process] : processes_) {
      if (Runs(process)) return false;
    }
    return true;
  }

  // mpirun and apogee run start them in groups of their own.
  void KillRanks() {
    for (const pid_t process : ProcessesOf(folder_)) kill(process, SIGKILL);
  }

  // What is still there after a while.
  void CollectLeft(Outcome& outcome) {
    const double deadline = Now() + kCleanUpSeconds;
    do {
      outcome.left.clear();
      for (const pid_t process : ProcessesOf(folder_)) {
        outcome.left.push_back("process " + std::to_string(process));
      }
      for (const Event& event : outcome.events) {
        if (event.kind == "shared" && std::filesystem::exists(event.text)) {
          outcome.left.push_back(event.text);
        }
      }
      // Folders without files are mpirun's own.
      std::error_code error;
      for (std::filesystem::recursive_directory_iterator entry(folder_ / "tmp", error), end;
           !error && entry != end; entry.increment(error)) {
        if (!entry->is_directory(error)) outcome.left.push_back(entry->path().string());
      }
      if (outcome.left.empty()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (Now() < deadline);
  }

  const Trial& trial_;
  const RunOptions& options_;
  const TempDir& folder_;
  double started_;
  pid_t child_ = 0;
  std::map<int, pid_t> processes_;  // of the ranks
};

}  // namespace

Outcome RunTrial(const Trial& trial, const RunOptions& options) {
  const TempDir folder;
  return Running(trial, options, folder).Wait();
}

}  // namespace apogee::comm::faults
