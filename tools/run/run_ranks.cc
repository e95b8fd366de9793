// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/run/run_ranks.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include "apogee/comm/tcp/socket.h"
#include "apogee/tools/run/child_rank.h"

namespace apogee::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kAborted = 70;  // the exit code of a rank that has ended the job (docs/launch.md)
constexpr std::chrono::milliseconds kAbortGrace(100);
constexpr std::array<int, 4> kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGCONT};

absl::StatusOr<std::string> NewToken() {
  std::array<unsigned char, 16> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::ErrnoToStatus(errno, "no random numbers for the job's token");
  }
  std::ostringstream text;
  for (const unsigned char byte : bytes) {
    text << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(byte);
  }
  return text.str();
}

class Ranks {
 public:
  ~Ranks() {
    SignalAll(SIGKILL);
    for (const auto& [child, rank] : running_) waitpid(child, nullptr, 0);
  }

  absl::Status Start(const RunOptions& options) {
    APOGEE_ASSIGN_OR_RETURN(const std::string token, NewToken());
    APOGEE_ASSIGN_OR_RETURN(const comm::tcp::Socket listener, comm::tcp::Listen("127.0.0.1", 0));
    APOGEE_ASSIGN_OR_RETURN(const uint16_t port, comm::tcp::PortOf(listener));
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      std::vector<std::string> settings = {"APOGEE_RANK=" + std::to_string(rank),
                                           "APOGEE_NUM_RANKS=" + std::to_string(options.num_ranks),
                                           "APOGEE_ADDRESS=127.0.0.1:" + std::to_string(port),
                                           "APOGEE_JOB_TOKEN=" + token};
      if (rank == 0) settings.push_back("APOGEE_LISTEN_FD=" + std::to_string(listener.fd()));
      APOGEE_ASSIGN_OR_RETURN(const pid_t child,
                              StartRank(options.command, settings, rank == 0 ? listener.fd() : -1));
      running_[child] = rank;
    }
    return absl::OkStatus();
  }

  void SignalAll(int signal) const {
    for (const auto& [child, rank] : running_) kill(-child, signal);
  }

  // Ctrl-Z: the terminal does not signal the ranks, which are in process groups of their own.
  // Returns when this process continues, and moves the deadlines by the time it was stopped.
  void StopWithThem() {
    SignalAll(SIGTSTP);
    const auto before = Clock::now();
    raise(SIGSTOP);
    SignalAll(SIGCONT);
    const auto stopped = Clock::now() - before;
    act_at_ += stopped;
    kill_at_ += stopped;
  }

  // Collects the ranks that have ended.
  void Reap(double grace_seconds) {
    int status = 0;
    for (pid_t child = 0; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto entry = running_.extract(child);
      const int code = ExitCodeOf(status);
      if (entry.empty() || code == 0 || failed_ != 0) continue;
      failed_ = code;
      std::cerr << "apogee run: rank " + std::to_string(entry.mapped()) + " " +
                       DescribeEnd(status) + "\n";
      const auto grace = std::chrono::milliseconds(static_cast<int64_t>(grace_seconds * 1000));
      act_at_ = Clock::now() + (code == kAborted ? std::min(kAbortGrace, grace) : grace);
      kill_at_ = act_at_ + (code == kAborted ? kAbortGrace : grace);
    }
  }

  // Sends SIGTERM, then SIGKILL, to the ranks left after a failure, when due.
  void EndOthers() {
    const auto now = Clock::now();
    if (failed_ == 0 || running_.empty() || now < act_at_) return;
    const bool last = now >= kill_at_;
    if (!told_ || (last && !killed_)) {
      for (const auto& [child, rank] : running_) {
        if (failed_ == kAborted) continue;  // the rank that aborted has printed why
        std::cerr << "apogee run: rank " + std::to_string(rank) +
                         " has not ended by itself, gets " + (last ? "SIGKILL\n" : "SIGTERM\n");
      }
      SignalAll(last ? SIGKILL : SIGTERM);
      SignalAll(SIGCONT);  // a stopped process handles no other signal
    }
    told_ = true;
    killed_ = last;
  }

  bool is_running() const { return !running_.empty(); }
  int failed() const { return failed_; }

 private:
  std::map<pid_t, int> running_;  // -> rank
  int failed_ = 0;                // the exit code of the first failed rank
  Clock::time_point act_at_ = {}, kill_at_ = {};
  bool told_ = false, killed_ = false;
};

}  // namespace

absl::StatusOr<int> RunRanks(const RunOptions& options) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  sigaddset(&awaited, SIGTSTP);
  for (const int signal : kPassedOn) sigaddset(&awaited, signal);
  sigprocmask(SIG_BLOCK, &awaited, nullptr);
  Ranks ranks;
  APOGEE_RETURN_IF_ERROR(ranks.Start(options));
  while (true) {
    ranks.Reap(options.grace_seconds);
    ranks.EndOthers();
    if (!ranks.is_running()) return ranks.failed();
    // The end of a rank is a signal (SIGCHLD), but a deadline after a failure is not: check more
    // often then.
    const timespec wait = {.tv_sec = 0, .tv_nsec = ranks.failed() != 0 ? 10'000'000 : 900'000'000};
    const int signal = sigtimedwait(&awaited, nullptr, &wait);
    if (signal == SIGTSTP) ranks.StopWithThem();
    if (std::find(kPassedOn.begin(), kPassedOn.end(), signal) != kPassedOn.end()) {
      ranks.SignalAll(signal);
    }
  }
}

}  // namespace apogee::tools
