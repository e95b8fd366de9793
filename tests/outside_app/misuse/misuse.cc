// SPDX-License-Identifier: Apache-2.0

// Makes mistakes, each in a process of its own, on 4 ranks that are threads. Every rank must get an
// error, and rank 0's must say what to do; a crash, a hang and a run that goes well are failures.
//
//   misuse                        all mistakes, one line each, then "N passed, M failed"
//   misuse raw_criterion/tp2z0    one, in this process, with rank 0's whole message
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "apogee/apogee.h"
#include "child_process.h"
#include "misuse_cases.h"

namespace outside {
namespace {

constexpr int kRanks = 4;
constexpr double kSeconds = 60;

std::vector<MisuseCase> AllCases() {
  std::vector<MisuseCase> all;
  for (const auto& some : {DataMistakes(), LifetimeMistakes(), LoopMistakes(), ModelMistakes(),
                           OptimizerMistakes(), RankMistakes()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Each rank's message; empty: it had no error.
std::vector<std::string> MessagesOf(const MisuseCase& misuse) {
  std::vector<std::string> messages(kRanks);
  const auto body = [&](apogee::comm::World& world) {
    std::string& message = messages[static_cast<size_t>(world.rank())];
    try {
      RankSetup rank(world, misuse.plugin);
      misuse.make(rank);
    } catch (const std::exception& error) {
      message = error.what();
      throw;
    }
  };
  // The ranks' messages say it all.
  apogee::comm::launch({.num_ranks = kRanks, .threads_per_rank = 1, .timeout_seconds = 5}, body)
      .IgnoreError();
  return messages;
}

// Nothing: as it must be.
std::string Complaint(const MisuseCase& misuse, const std::vector<std::string>& messages) {
  for (size_t r = 0; r < messages.size(); ++r) {
    if (messages[r].empty()) return "rank " + std::to_string(r) + " had no error";
  }
  if (messages[0].find(misuse.expected) == std::string::npos) {
    return "rank 0's message lacks \"" + misuse.expected + "\"";
  }
  return "";
}

int RunHere(const MisuseCase& misuse) {
  const std::vector<std::string> messages = MessagesOf(misuse);
  const std::string complaint = Complaint(misuse, messages);
  if (!complaint.empty()) std::printf("%s\n", complaint.c_str());
  std::printf("rank 0: %s\n", messages[0].c_str());
  return complaint.empty() ? 0 : 1;
}

int RunAll() {
  int passed = 0, failed = 0;
  for (const MisuseCase& misuse : AllCases()) {
    const Ended ended = RunAgain(misuse.name(), kSeconds);
    ++(ended.ok() ? passed : failed);
    std::printf("%s %s", ended.ok() ? "PASS" : "FAIL", misuse.name().c_str());
    std::printf("%s\n", ended.ok() ? "" : ("  " + ended.Description()).c_str());
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc == 1) return RunAll();
  for (const MisuseCase& misuse : AllCases()) {
    if (misuse.name() == argv[1]) return RunHere(misuse);
  }
  std::fprintf(stderr, "there is no mistake \"%s\"\n", argv[1]);
  return 2;
}

}  // namespace
}  // namespace outside

int main(int argc, char** argv) { return outside::Main(argc, argv); }
