// SPDX-License-Identifier: Apache-2.0

// The ranks of a fault trial (trial.h): threads, or processes under mpirun or apogee run. They call
// one collective again and again, until one of them misbehaves.
//
//   fault_ranks --trial threads/loop/all_reduce/large/3/1 --timeout 1
//   mpirun -np 3 fault_ranks --trial mpi/sigkill/broadcast/flight/3/2
//
// With --folder, what happens goes into its file `events`. Every process prints the error that
// launch returns, and exits with 1 for it.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "apogee/comm/launch.h"
#include "apogee/tests/comm/faults/events.h"
#include "apogee/tests/comm/faults/trial.h"

namespace apogee::comm::faults {
namespace {

class Rank {
 public:
  Rank(const Trial& trial, World& world, Events* events)
      : trial_(trial), world_(world), events_(events) {}

  void Run() {
    const std::optional<Call> call = trial_.ExpectedCall(world_.rank());
    if (!call) return;
    for (int i = 0; i < kNumGood; ++i) Start(*call)->Wait();
    ReportShared();
    std::vector<std::shared_ptr<Work>> works;
    if (trial_.size == "flight") {
      for (int i = 0; i < kNumInFlight; ++i) works.push_back(Start(*call));
    }
    if (world_.rank() == trial_.bad_rank && trial_.fault != "none") {
      // Some of what is under way has arrived, the rest has not.
      while (!works.empty() && !works[0]->IsDone()) std::this_thread::yield();
      int under_way = 0;
      for (const auto& work : works) under_way += work->IsDone() ? 0 : 1;
      Report("fault", std::to_string(under_way) + " calls under way");
      if (trial_.fault == "return") return;
      Misbehave();
    }
    for (const auto& work : works) work->Wait();
    Start(*call)->Wait();
    Start(*trial_.NextCall(world_.rank()))->Wait();
  }

  void Report(const std::string& kind, const std::string& text) {
    if (events_ != nullptr) events_->Add(kind, world_.rank(), text);
  }

 private:
  Tensor Make(int64_t numel) { return Tensor::Zeros({numel}, DType::kF32, world_.context()); }

  std::shared_ptr<Work> Start(const Call& call) {
    Group& group = *world_.group();
    const int64_t n = call.numel, size = world_.size();
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return group.AllReduceAsync(Make(n), call.op);
      case CollectiveKind::kReduceScatter:
        return group.ReduceScatterAsync(Make(n / size), Make(n), call.op);
      case CollectiveKind::kAllGather:
        return group.AllGatherAsync(Make(n * size), Make(n));
      case CollectiveKind::kBroadcast:
        return group.BroadcastAsync(Make(n), call.root);
      case CollectiveKind::kReduce:
        return group.ReduceAsync(Make(n), call.root, call.op);
      case CollectiveKind::kAllToAll:
        return group.AllToAllAsync(Make(n), Make(n));
      case CollectiveKind::kSend:
        return group.SendAsync(Make(n), call.root);
      case CollectiveKind::kRecv:
        return group.RecvAsync(Make(n), call.root);
      case CollectiveKind::kBarrier:
        return group.BarrierAsync();
    }
    Throw("no such call");
  }

  void Misbehave() {
    const std::string& fault = trial_.fault;
    if (fault == "exception") throw std::runtime_error(kException);
    if (fault == "sigkill") raise(SIGKILL);
    if (fault == "sigstop") raise(SIGSTOP);
    if (fault == "exit") std::exit(3);
    if (fault == "_exit") _exit(3);
    if (fault == "loop") {
      for (volatile bool forever = true; forever;) {
      }
    }
    if (fault == "segfault") {
      const rlimit none{};
      setrlimit(RLIMIT_CORE, &none);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
      signal(SIGSEGV, SIG_DFL);  // a sanitizer would end the process with an exit code
#endif
      raise(SIGSEGV);
    }
    // The right call follows, which is the second half of a wrong order.
    if (const auto wrong = trial_.WrongCall()) Start(*wrong)->Wait();
  }

  // Memory that processes share must be gone when they are.
  void ReportShared() {
    std::ifstream maps("/proc/self/maps");
    std::set<std::string> paths;
    for (std::string line; std::getline(maps, line);) {
      const size_t at = line.find("/dev/shm/");
      if (at == std::string::npos) continue;
      paths.insert(line.substr(at, line.find(" (deleted)", at) - at));
    }
    for (const std::string& path : paths) Report("shared", path);
  }

  const Trial& trial_;
  World& world_;
  Events* events_;
};

int Run(const Trial& trial, double timeout, Events* events) {
  int process = 0;
  if (trial.OfProcesses()) process = ValueOrThrow(StartedProcesses()).rank;
  if (events != nullptr) events->Add("process", process, std::to_string(getpid()));
  const LaunchOptions options{
      .num_ranks = trial.num_ranks, .threads_per_rank = 1, .timeout_seconds = timeout};
  const absl::Status status = launch(options, [&](World& world) {
    Rank rank(trial, world, events);
    try {
      rank.Run();
    } catch (const std::exception& error) {
      rank.Report("threw", error.what());
      throw;
    }
  });
  if (events != nullptr) events->Add("launch", process, status.ok() ? "" : Message(status));
  // One write, so that the lines of several processes do not mix.
  if (!status.ok()) std::fputs(("ended with: " + Message(status) + "\n").c_str(), stderr);
  // A process that is stopped when the others are about to end.
  if (trial.fault == "stop_after" && process == trial.bad_rank) raise(SIGSTOP);
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace apogee::comm::faults

int main(int argc, char** argv) {
  using namespace apogee::comm::faults;
  std::string name, folder;
  double timeout = 1;
  CLI::App app("Ranks of which one misbehaves.");
  app.add_option("--trial", name, "BACKEND/FAULT/COLLECTIVE/SIZE/RANKS/BAD_RANK")->required();
  app.add_option("--timeout", timeout, "LaunchOptions::timeout_seconds")->capture_default_str();
  app.add_option("--folder", folder, "For the file events");
  CLI11_PARSE(app, argc, argv);
  const auto trial = Trial::Parse(name);
  if (!trial.ok()) {
    std::fprintf(stderr, "fault_ranks: %s\n", apogee::Message(trial.status()).c_str());
    return 2;
  }
  std::optional<Events> events;
  if (!folder.empty()) events.emplace(folder + "/events");
  return Run(*trial, timeout, events ? &*events : nullptr);
}
