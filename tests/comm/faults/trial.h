// SPDX-License-Identifier: Apache-2.0

// A fault trial: the ranks call one collective again and again, and in the call #kNumGood one of
// them misbehaves. A Trial has the calls of each rank. fault_ranks makes these calls, and judge.h
// compares the ranks' messages with them.
//
//   const Trial trial = ValueOrThrow(Trial::Parse("mpi/loop/all_reduce/large/3/1"));
//   trial.ExpectedCall(0)->ToString();               // "all_reduce(sum, 1572864 x f32)"
#ifndef APOGEE_TESTS_COMM_FAULTS_TRIAL_H_
#define APOGEE_TESTS_COMM_FAULTS_TRIAL_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"

namespace apogee::comm::faults {

// Calls that all complete before the fault.
inline constexpr int kNumGood = 3;
// Calls that are under way at the fault, with size "flight".
inline constexpr int kNumInFlight = 3;
// The message of a rank that throws.
inline constexpr const char* kException = "the disk is on fire";

struct Call {
  CollectiveKind kind;
  int64_t numel = 0;  // of the input; 0: a barrier
  int root = 0;       // or the peer
  ReduceOp op = ReduceOp::kSum;
  // As messages must write it. Not the library's own function.
  std::string ToString() const;
};

struct Trial {
  std::string backend;     // "threads", "mpi", "tcp"
  std::string fault;       // one of Faults(), "none", or one that mpi_faults_test starts
  std::string collective;  // one of Collectives()
  std::string size;        // "small": goes along with the announcement; "large"; "flight"
  int num_ranks = 2;
  int bad_rank = 0;

  // "mpi/loop/all_reduce/large/3/1": the number of ranks, then the one that misbehaves.
  std::string Name() const;
  static absl::StatusOr<Trial> Parse(const std::string& name);

  // Ranks are processes.
  bool OfProcesses() const { return backend != "threads"; }
  // send and recv: only the bad rank and its partner call anything.
  bool IsPair() const { return collective == "send" || collective == "recv"; }
  int Partner() const { return (bad_rank + 1) % num_ranks; }
  // The call that this rank makes when all is well, each time; none for those beside a pair.
  std::optional<Call> ExpectedCall(int rank) const;
  // The call after that one, in a trial of wrong order.
  std::optional<Call> NextCall(int rank) const;
  // The call of the bad rank instead, in a trial of a wrong call.
  std::optional<Call> WrongCall() const;
};

// Faults among threads; and among processes, where a process can also be killed alone.
const std::vector<std::string>& Faults(const std::string& backend);
const std::vector<std::string>& Collectives();
// Every fault with every collective and size that it can be tried with.
std::vector<Trial> AllTrials();
// At least `count` of them: few that have every fault, collective, size and number of ranks with
// every backend, and more at even distances.
std::vector<Trial> Sample(const std::vector<Trial>& trials, size_t count);

}  // namespace apogee::comm::faults

#endif  // APOGEE_TESTS_COMM_FAULTS_TRIAL_H_
