// SPDX-License-Identifier: Apache-2.0

// One save, or one look at what is there: what scripts/kill_every_syscall.sh kills and checks.
//
//   save_once_program save FOLDER RANKS STEP [async]    # resumes the newest, trains a step, saves,
//                                                       # keeps two
//   save_once_program check FOLDER                      # "valid 2 3" and "leftovers 1"
//
// save prints "resumed STEP" where there was something, "saving STEP" before it begins, then waits
// for a line of input (for a tracer that attaches), and "saved STEP" when it is acknowledged:
// async, when wait_for_saves returns, and meanwhile it trains another step. Exit code 1, with the
// reason on stderr: an error, or a checkpoint that does not verify.
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/tests/support/runs/small_run.h"

namespace apogee {
namespace {

using checkpoint::RealFileSystem;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status Save(const std::string& folder, int ranks, int64_t step, bool use_async) {
  absl::StatusOr<Resumed> resumed = NotFound("");
  APOGEE_RETURN_IF_ERROR(testing::OnSmallRun(ranks, [&](testing::SmallRun& run) -> absl::Status {
    const comm::GroupPtr group = run.booster.plugin().group();
    const bool leads = group == nullptr || group->rank() == 0;
    const auto found = run.booster.resume(folder);
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    if (leads && found.ok()) {
      for (const std::string& notice : found->notices) Say(notice);
      Say("resumed " + std::to_string(found->position.step));
    }
    run.Step();
    if (group != nullptr) group->Barrier();  // all that is left to do is the save
    if (leads) {
      Say("saving " + std::to_string(step));
      for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
    }
    APOGEE_RETURN_IF_ERROR(run.booster.save_training_state(folder, {.step = step},
                                                           {.keep = 2, .use_async = use_async}));
    if (!use_async) return absl::OkStatus();
    run.Step();
    return run.booster.wait_for_saves();
  }));
  Say("saved " + std::to_string(step));
  return absl::OkStatus();
}

absl::Status Check(const std::string& folder) {
  std::string valid = "valid";
  int leftovers = 0;
  const auto found = checkpoint::FindCheckpoints(RealFileSystem(), folder);
  if (!absl::IsNotFound(found.status())) {
    APOGEE_RETURN_IF_ERROR(found.status());
    for (const auto& rejected : found->rejected) return rejected.why;
    for (const auto& one : found->valid) {
      APOGEE_ASSIGN_OR_RETURN(const auto reader,
                              checkpoint::CheckpointReader::Open(
                                  RealFileSystem(), checkpoint::JoinPath(folder, one.name)));
      APOGEE_RETURN_IF_ERROR(reader.Verify());
      valid += " " + std::to_string(one.step);
    }
    APOGEE_ASSIGN_OR_RETURN(const auto names, RealFileSystem()->List(folder));
    leftovers = static_cast<int>(names.size() - found->valid.size());
  }
  Say(valid);
  Say("leftovers " + std::to_string(leftovers));
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& words) {
  const bool use_async = words.size() == 5 && words[4] == "async";
  const bool saves = (words.size() == 4 || use_async) && words[0] == "save";
  if (!saves && !(words.size() == 2 && words[0] == "check")) {
    std::fprintf(stderr,
                 "usage: save_once_program save FOLDER RANKS STEP [async] | check FOLDER\n");
    return 2;
  }
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where only parents may trace
  const absl::Status status =
      saves ? Save(words[1], std::atoi(words[2].c_str()), std::atoll(words[3].c_str()), use_async)
            : Check(words[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "save_once_program: %s\n", Message(status).c_str());
  return 1;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main({argv + 1, argv + argc}); }
