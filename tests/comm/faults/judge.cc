// SPDX-License-Identifier: Apache-2.0

#include "apogee/tests/comm/faults/judge.h"

#include <algorithm>
#include <cctype>

namespace apogee::comm::faults {
namespace {

constexpr int kLostExitCode = 70;  // docs/launch.md

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// `name`, not followed by another digit: "rank 1" is not in "rank 12".
bool HasRank(std::string text, const std::string& name) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == text.size() || !std::isdigit(static_cast<unsigned char>(text[end]))) return true;
  }
  return false;
}

class Judgement {
 public:
  Judgement(const Trial& trial, const Outcome& outcome)
      : trial_(trial), outcome_(outcome), bad_("rank " + std::to_string(trial.bad_rank)) {
    for (int i = 0; i < trial.num_ranks; ++i) {
      if (i > 0) group_ += ' ';
      group_ += std::to_string(i);
    }
  }

  std::vector<std::string> Run() {
    if (Count("fault", trial_.bad_rank) != 1) Wrong("the fault was not reached");
    for (int rank = 0; rank < trial_.num_ranks; ++rank) JudgeRank(rank);
    JudgeLaunches();
    JudgeEnd();
    for (const std::string& left : outcome_.left) Wrong("left behind: " + left);
    return wrong_;
  }

 private:
  void Wrong(const std::string& what) { wrong_.push_back(what); }

  // The process is gone at once. Over MPI before anybody can tell: mpirun ends the others, and
  // names it.
  bool IsKilled() const { return trial_.fault == "sigkill" || trial_.fault == "segfault"; }
  // The launch cannot end in order without it.
  bool IsLost() const { return trial_.fault == "sigstop" || trial_.fault == "loop"; }

  long Count(const std::string& kind, int rank) const {
    return std::count_if(outcome_.events.begin(), outcome_.events.end(), [&](const Event& event) {
      return event.kind == kind && event.rank == rank;
    });
  }

  // "all_reduce(sum, 384 x f32) #3 of group [0 1]"; in flight, any of the calls since. Of a killed
  // process' last good call others may have yet to get their part.
  bool HasCall(const std::string& text, const Call& call) const {
    const int last = kNumGood + (trial_.size == "flight" ? kNumInFlight : 0);
    for (int number = kNumGood - (IsKilled() ? 1 : 0); number <= last; ++number) {
      if (Has(text, call.ToString() + " #" + std::to_string(number) + " of group [" + group_ + "]"))
        return true;
    }
    return false;
  }

  // As a rank that called `call` must be told by it.
  bool IsRight(const std::string& text, const Call& call) const {
    const std::string& fault = trial_.fault;
    if (const auto called = trial_.WrongCall()) {
      const std::string name = called->ToString();
      // What one of a pair sends and the other does not take is no disagreement: both wait.
      if (trial_.IsPair() && fault == "op") {
        return (HasCall(text, call) && HasRank(text, ": " + bad_ + " did not arrive within")) ||
               (Has(text, name + " #0 of group [" + group_ + "]") &&
                HasRank(text, "waiting: " + bad_));
      }
      const std::string number = internal::Concat("#", kNumGood, " of group");
      return Has(text, "ranks disagree on collective " + number) && Has(text, call.ToString()) &&
             (Has(text, bad_ + " called " + name + " where") ||
              Has(text, bad_ + " called " + name + " " + number));
    }
    if (!HasCall(text, call)) return false;
    if (fault == "exception") return Has(text, ": " + bad_ + " failed: " + kException);
    if (fault == "return") return Has(text, ": " + bad_ + " returned before this collective");
    if (IsLost()) {
      return Has(text, ": " + bad_ + " did not arrive within ") ||
             (Has(text, "no data has moved between ") && Has(text, " and " + bad_ + " for "));
    }
    return HasRank(text, bad_);
  }

  void JudgeRank(int rank) {
    const auto call = trial_.ExpectedCall(rank);
    const bool disagrees = trial_.WrongCall().has_value();
    if (!call || (rank == trial_.bad_rank && !disagrees)) return;
    if (Count("threw", rank) != 1 && !(IsKilled() && trial_.backend == "mpi")) {
      Wrong("rank " + std::to_string(rank) + " got no error");
    }
    for (const Event& event : outcome_.events) {
      if (event.kind != "threw" || event.rank != rank) continue;
      // A bad rank that disagrees is told, too, by the name of what it was to call.
      const Call& told = rank == trial_.bad_rank ? *trial_.ExpectedCall(trial_.Partner()) : *call;
      if (!IsRight(event.text, told)) {
        Wrong("rank " + std::to_string(rank) + " was told: " + event.text);
      }
    }
  }

  void JudgeLaunches() {
    for (const Event& event : outcome_.events) {
      if (event.kind != "launch") continue;
      // A process that is ended while it is stopped may wake up first, and complain in its turn.
      if (IsLost() && trial_.OfProcesses() && event.rank == trial_.bad_rank) continue;
      const bool exception = trial_.fault == "exception";
      bool right = exception ? event.text == bad_ + ": " + kException
                             : (IsLost() || IsKilled()) && event.text.starts_with(bad_ + ": ");
      for (int rank = 0; rank < trial_.num_ranks && !exception; ++rank) {
        const auto call = trial_.ExpectedCall(rank);
        right = right || (call && rank != trial_.bad_rank && IsRight(event.text, *call));
      }
      if (!right) {
        Wrong("launch of process " + std::to_string(event.rank) + " returned: " + event.text);
      }
    }
    if (IsKilled() || IsLost()) {
      if (!HasRank(outcome_.err, bad_)) Wrong("the output does not name " + bad_);
      return;
    }
    const int num_processes = trial_.OfProcesses() ? trial_.num_ranks : 1;
    for (int process = 0; process < num_processes; ++process) {
      if (Count("launch", process) == 1) continue;
      Wrong("launch of process " + std::to_string(process) + " did not return");
    }
  }

  void JudgeEnd() {
    const int code = outcome_.exit_code;
    const bool right = IsKilled() ? code != 0 : code == (IsLost() ? kLostExitCode : 1);
    if (!right) Wrong("exit code " + std::to_string(code));
  }

  const Trial& trial_;
  const Outcome& outcome_;
  std::string bad_;    // "rank 1"
  std::string group_;  // "0 1 2"
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> Judge(const Trial& trial, const Outcome& outcome) {
  return Judgement(trial, outcome).Run();
}

}  // namespace apogee::comm::faults
