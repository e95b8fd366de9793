// SPDX-License-Identifier: Apache-2.0

#include "apogee/tests/comm/faults/trial.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace apogee::comm::faults {
namespace {

// Divisible by 2, 3 and 4, and so is half of it. The first is below the 2 KiB that go along with an
// announcement, the second moves for some milliseconds.
constexpr int64_t kSmall = 384, kLarge = 3 << 19;

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool IsOneOf(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::string Call::ToString() const {
  const auto arguments = [this](const std::string& first) {
    return "(" + first + std::to_string(numel) + " x f32)";
  };
  const std::string peer = std::to_string(root) + ", ";
  const std::string reduction = op == ReduceOp::kSum ? "sum, " : "max, ";
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce" + arguments(reduction);
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter" + arguments(reduction);
    case CollectiveKind::kAllGather:
      return "all_gather" + arguments("");
    case CollectiveKind::kBroadcast:
      return "broadcast" + arguments("root " + peer);
    case CollectiveKind::kReduce:
      return "reduce" + arguments(reduction + "root " + peer);
    case CollectiveKind::kAllToAll:
      return "all_to_all" + arguments("");
    case CollectiveKind::kSend:
      return "send" + arguments("to " + peer);
    case CollectiveKind::kRecv:
      return "recv" + arguments("from " + peer);
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "";
}

std::string Trial::Name() const {
  return backend + "/" + fault + "/" + collective + "/" + size + "/" + std::to_string(num_ranks) +
         "/" + std::to_string(bad_rank);
}

absl::StatusOr<Trial> Trial::Parse(const std::string& name) {
  std::istringstream text(name);
  Trial trial;
  std::string* const words[] = {&trial.backend, &trial.fault, &trial.collective, &trial.size};
  for (std::string* word : words) std::getline(text, *word, '/');
  char slash = ' ';
  text >> trial.num_ranks >> slash >> trial.bad_rank;
  std::vector<std::string> faults = Faults(trial.backend);
  faults.insert(faults.end(), {"none", "exit", "_exit", "stop_after"});
  const bool known = IsOneOf({"threads", "mpi", "tcp"}, trial.backend) &&
                     IsOneOf(faults, trial.fault) && IsOneOf(Collectives(), trial.collective) &&
                     IsOneOf({"small", "large", "flight"}, trial.size);
  if (!text || !known || slash != '/' || trial.num_ranks < 2 || trial.bad_rank < 0 ||
      trial.bad_rank >= trial.num_ranks) {
    return InvalidArgument("a trial is BACKEND/FAULT/COLLECTIVE/SIZE/RANKS/BAD_RANK, got ", name);
  }
  return trial;
}

std::optional<Call> Trial::ExpectedCall(int rank) const {
  const int64_t numel = size == "small" ? kSmall : kLarge;
  const int root = num_ranks - 1;
  if (IsPair()) {
    if (rank != bad_rank && rank != Partner()) return std::nullopt;
    const bool sends = (rank == bad_rank) == (collective == "send");
    return Call{.kind = sends ? CollectiveKind::kSend : CollectiveKind::kRecv,
                .numel = numel,
                .root = rank == bad_rank ? Partner() : bad_rank};
  }
  if (collective == "all_reduce") return Call{.kind = CollectiveKind::kAllReduce, .numel = numel};
  if (collective == "reduce_scatter") {
    return Call{.kind = CollectiveKind::kReduceScatter, .numel = numel};
  }
  if (collective == "all_gather") return Call{.kind = CollectiveKind::kAllGather, .numel = numel};
  if (collective == "broadcast") {
    return Call{.kind = CollectiveKind::kBroadcast, .numel = numel, .root = root};
  }
  if (collective == "reduce") {
    return Call{.kind = CollectiveKind::kReduce, .numel = numel, .root = root};
  }
  if (collective == "all_to_all") return Call{.kind = CollectiveKind::kAllToAll, .numel = numel};
  return Call{.kind = CollectiveKind::kBarrier};
}

std::optional<Call> Trial::NextCall(int rank) const {
  std::optional<Call> call = ExpectedCall(rank);
  if (!call) return call;
  if (call->kind == CollectiveKind::kBarrier) {
    return Call{.kind = CollectiveKind::kAllReduce, .numel = kSmall};
  }
  call->numel /= 2;
  return call;
}

std::optional<Call> Trial::WrongCall() const {
  std::optional<Call> call = ExpectedCall(bad_rank);
  if (fault == "count") {
    call->numel /= 2;
    return call;
  }
  if (fault == "order") return NextCall(bad_rank);
  if (fault != "op") return std::nullopt;
  if (IsReduction(call->kind)) {
    call->op = ReduceOp::kMax;
    return call;
  }
  switch (call->kind) {
    case CollectiveKind::kSend:
      call->kind = CollectiveKind::kRecv;
      return call;
    case CollectiveKind::kRecv:
      call->kind = CollectiveKind::kSend;
      return call;
    case CollectiveKind::kBroadcast:
      return Call{.kind = CollectiveKind::kAllReduce, .numel = call->numel};
    case CollectiveKind::kBarrier:
      return Call{.kind = CollectiveKind::kAllReduce, .numel = kSmall};
    default:
      return Call{.kind = CollectiveKind::kBroadcast, .numel = call->numel};
  }
}

const std::vector<std::string>& Faults(const std::string& backend) {
  static const std::vector<std::string> kOfRanks = {"exception", "return", "loop",
                                                    "count",     "op",     "order"};
  static const std::vector<std::string> kOfProcesses = {
      "sigkill", "sigstop", "exception", "return", "loop", "segfault", "count", "op", "order"};
  return backend == "threads" ? kOfRanks : kOfProcesses;
}

const std::vector<std::string>& Collectives() {
  static const std::vector<std::string> kAll = {"all_reduce", "reduce_scatter", "all_gather",
                                                "broadcast",  "reduce",         "all_to_all",
                                                "send",       "recv",           "barrier"};
  return kAll;
}

std::vector<Trial> AllTrials() {
  std::vector<Trial> trials;
  int number = 0;  // turns the number of ranks, and which is bad, through all that there are
  const auto add = [&](Trial trial) {
    trial.num_ranks = 2 + (number + number / 3) % 3;  // not always the same for a size
    trial.bad_rank = number / 3 % trial.num_ranks;
    ++number;
    trials.push_back(trial);
  };
  for (const char* backend : {"threads", "mpi", "tcp"}) {
    for (const std::string& fault : Faults(backend)) {
      for (const std::string& collective : Collectives()) {
        const bool barrier = collective == "barrier";
        if (barrier && fault == "count") continue;
        Trial trial{.backend = backend, .fault = fault, .collective = collective, .size = "small"};
        add(trial);
        if (barrier) continue;
        trial.size = "large";
        add(trial);
        if (fault == "sigkill" || fault == "sigstop" || fault == "loop" || fault == "exception") {
          trial.size = "flight";
          add(trial);
        }
      }
    }
  }
  return trials;
}

std::vector<Trial> Sample(const std::vector<Trial>& trials, size_t count) {
  std::set<std::string> covered;
  const auto traits = [](const Trial& trial) {
    std::set<std::string> all;
    for (const std::string& trait :
         {trial.fault, trial.collective, trial.size, std::to_string(trial.num_ranks),
          "bad " + std::to_string(trial.bad_rank),
          trial.size == "flight" ? trial.fault + " in flight" : trial.fault}) {
      all.insert(trial.backend + " " + trait);
    }
    return all;
  };
  const auto news = [&](const Trial& trial) {
    int number = 0;
    for (const std::string& trait : traits(trial)) number += covered.contains(trait) ? 0 : 1;
    return number;
  };
  std::set<size_t> chosen;
  while (chosen.size() < trials.size()) {
    size_t best = 0;
    for (size_t i = 1; i < trials.size(); ++i) {
      if (news(trials[i]) > news(trials[best])) best = i;
    }
    if (news(trials[best]) == 0) break;
    chosen.insert(best);
    covered.merge(traits(trials[best]));
  }
  const size_t more = count > chosen.size() ? std::min(count, trials.size()) - chosen.size() : 0;
  std::vector<size_t> others;
  for (size_t i = 0; i < trials.size(); ++i) {
    if (!chosen.contains(i)) others.push_back(i);
  }
  for (size_t i = 0; i < more; ++i) chosen.insert(others[i * others.size() / more]);
  std::vector<Trial> sample;
  for (const size_t i : chosen) sample.push_back(trials[i]);
  return sample;
}

}  // namespace apogee::comm::faults
