// SPDX-License-Identifier: Apache-2.0

// Kills a training program again and again, at any moment, and checks that nothing that it said was
// saved is ever lost.
//
//   kill_storm --program build/release/examples/01_train_gpt/01_train_gpt --kills 1000 --ranks 4
//
// Each round starts the program (a tiny model, --save-every 1 --resume auto --keep 2), lets it run
// for a random time and sends SIGKILL. Then every checkpoint of the folder must verify, the newest
// one not be older than the last "saved step N" that the program printed, and the next round must
// say that it resumes from exactly that one. In the end the program runs on undisturbed, and a run
// that nobody killed must have the same losses in every step, bit for bit. --ranks 0: each round
// under another plugin and number of ranks, without the comparison of losses.
//
// Exit code 0: all rounds were right; 1: what was wrong is on stderr, and the folder stays.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/tests/support/program.h"

namespace apogee {
namespace {

struct StormOptions {
  std::string program;
  int kills = 10;
  int ranks = 0;
  std::string saves = "both";
  uint64_t seed = 1;
  int longest_ms = 700;  // of a round
};

struct Tally {
  int before_first_save = 0, during_save = 0, during_removal = 0;
  int64_t checkpoints_verified = 0, steps = 0;
};

class Storm {
 public:
  Storm(const StormOptions& options, const ::apogee::testing::TempDir& dir)
      : options_(options), dir_(dir), random_(options.seed) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    dir_.Write("text.txt", text);
  }

  void Run() {
    for (int kill = 0; kill < options_.kills; ++kill) Round();
    Finish();
    std::printf(
        "%d kills: %d before the first save, %d within a save, %d within a removal; %lld steps, "
        "%lld checkpoints verified, none lost\n",
        options_.kills, tally_.before_first_save, tally_.during_save, tally_.during_removal,
        static_cast<long long>(tally_.steps), static_cast<long long>(tally_.checkpoints_verified));
  }

 private:
  std::vector<std::string> Arguments(const std::string& out, int64_t steps) {
    std::vector<std::string> words = {options_.program, "--data", dir_ / "text.txt", "--out"};
    for (const char* word :
         {out.c_str(),   "--layers", "1",         "--heads",   "2",    "--dim",    "16",
          "--block",     "16",       "--batch",   "12",        "--lr", "0.003",    "--schedule",
          "constant",    "--warmup", "5",         "--dropout", "0.1",  "--sample", "1",
          "--log-every", "1000000",  "--threads", "1"}) {
      words.emplace_back(word);
    }
    static const std::vector<std::string> kSpreads = {
        "--ranks 1",
        "--ranks 2",
        "--ranks 3 --plugin zero2",
        "--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2",
        "--ranks 2 --plugin zero2",
        "--ranks 4 --plugin zero1"};
    const size_t spread =
        options_.ranks == 0 ? random_() % kSpreads.size() : static_cast<size_t>(options_.ranks) - 1;
    std::istringstream flags(kSpreads[spread]);
    for (std::string word; flags >> word;) words.push_back(word);
    words.insert(words.end(), {"--steps", std::to_string(steps)});
    return words;
  }

  // Its output; killed after `limit`, unless that is 0.
  std::string Execute(std::vector<std::string> words, std::chrono::microseconds limit) {
    const std::string output = dir_ / "stdout", errors = dir_ / "stderr";
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // A child that is killed before it opens its own must not leave the last round's.
    for (const std::string& path : {output, errors}) std::filesystem::remove(path);
    const pid_t child = fork();
    if (child < 0) Throw("cannot start a process");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must not train on when the storm is stopped
      dup2(open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
      dup2(open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    const bool kills = limit.count() > 0;
    if (kills) {
      std::this_thread::sleep_for(limit);
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool as_wanted = kills ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                 : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    APOGEE_CHECK(as_wanted, "the program ended by itself with status ", status, ": ",
                 testing::ReadFile(errors), testing::ReadFile(output));
    return testing::ReadFile(output);
  }

  // The number behind the last `label` of a whole line, or -1.
  static int64_t LastNumber(const std::string& output, const std::string& label) {
    int64_t number = -1;
    for (size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = output.substr(at, end - at);
      const size_t found = line.find(label);
      if (found != std::string::npos) number = std::stoll(line.substr(found + label.size()));
    }
    return number;
  }

  // The newest step, after a look at everything in the folder; -1 for none.
  int64_t Verify() {
    const auto& files = checkpoint::RealFileSystem();
    const std::string folder = dir_ / "out/checkpoints";
    const auto found = checkpoint::FindCheckpoints(files, folder);
    if (absl::IsNotFound(found.status())) return -1;
    OkOrThrow(found.status());
    APOGEE_CHECK(found->rejected.empty(), "not whole: ", found->rejected[0].name, ": ",
                 Message(found->rejected[0].why));
    for (const auto& valid : found->valid) {
      const auto path = checkpoint::JoinPath(folder, valid.name);
      OkOrThrow(ValueOrThrow(checkpoint::CheckpointReader::Open(files, path)).Verify());
      ++tally_.checkpoints_verified;
    }
    bool saving = false, removing = false;
    for (const std::string& name : ValueOrThrow(files->List(folder))) {
      saving |= name.starts_with(".tmp-");
      removing |= name.starts_with(".trash-");
    }
    tally_.during_save += saving ? 1 : 0;
    tally_.during_removal += removing ? 1 : 0;
    return found->valid.empty() ? -1 : found->valid.back().step;
  }

  void AddCheckpointFlags(std::vector<std::string>& words) {
    words.insert(words.end(), {"--save-every", "1", "--resume", "auto", "--keep", "2"});
    const bool asynchronous =
        options_.saves == "async" || (options_.saves == "both" && random_() % 2 == 0);
    if (asynchronous) words.emplace_back("--async-save");
  }

  void CheckResumes(const std::string& output) const {
    const int64_t resumed = LastNumber(output, " at step ");
    // A run that was killed early has not said anything yet.
    APOGEE_CHECK(resumed == newest_ || resumed == -1, "resumed at step ", resumed,
                 ", the newest checkpoint was of step ", newest_);
    APOGEE_CHECK(newest_ == -1 || output.find("nothing to resume") == std::string::npos,
                 "started anew beside a checkpoint of step ", newest_);
  }

  void Round() {
    std::vector<std::string> words = Arguments(dir_ / "out", 1'000'000);
    AddCheckpointFlags(words);
    const auto limit = std::chrono::microseconds(
        1 + random_() % static_cast<uint64_t>(options_.longest_ms * 1000));
    const std::string output = Execute(words, limit);
    CheckResumes(output);
    const int64_t acknowledged = std::max(LastNumber(output, "saved step "), newest_);
    newest_ = Verify();
    APOGEE_CHECK(newest_ >= acknowledged, "step ", acknowledged,
                 " was said to be saved, the newest checkpoint is of step ", newest_);
    tally_.before_first_save += newest_ == -1 ? 1 : 0;
  }

  std::vector<std::string> Losses(const std::string& out) const {
    std::vector<std::string> losses;
    for (const auto& row : testing::ReadRows(dir_ / (out + "/metrics.jsonl"))) {
      losses.push_back(row["step"].dump() + ": " + row["loss"].dump());
    }
    return losses;
  }

  void Finish() {
    tally_.steps = std::max<int64_t>(newest_, 0) + 3;
    std::vector<std::string> words = Arguments(dir_ / "out", tally_.steps);
    AddCheckpointFlags(words);
    CheckResumes(Execute(words, {}));
    newest_ = Verify();
    APOGEE_CHECK(newest_ == tally_.steps, "the last run left no checkpoint");
    const std::vector<std::string> stormy = Losses("out");
    APOGEE_CHECK(static_cast<int64_t>(stormy.size()) == tally_.steps, "metrics.jsonl has ",
                 stormy.size(), " rows of ", tally_.steps);
    if (options_.ranks == 0) return;
    Execute(Arguments(dir_ / "calm", tally_.steps), {});
    const std::vector<std::string> calm = Losses("calm");
    for (size_t i = 0; i < calm.size(); ++i) {
      APOGEE_CHECK(calm[i] == stormy[i], "step and loss ", stormy[i], ", but ", calm[i],
                   " in a run that was not killed");
    }
  }

  StormOptions options_;
  const ::apogee::testing::TempDir& dir_;
  std::mt19937_64 random_;
  int64_t newest_ = -1;
  Tally tally_;
};

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) {
  apogee::StormOptions options;
  CLI::App app("Kills a training program at random moments; nothing that it saved may be lost.");
  app.add_option("--program", options.program, "01_train_gpt")->required();
  app.add_option("--kills", options.kills)->capture_default_str();
  app.add_option("--ranks", options.ranks, "1 to 4; 0: changing")
      ->check(CLI::Range(0, 4))
      ->capture_default_str();
  app.add_option("--saves", options.saves, "sync, async, or both in turns")
      ->check(CLI::IsMember({"sync", "async", "both"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the moments")->capture_default_str();
  app.add_option("--longest-ms", options.longest_ms, "A round's longest time")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const apogee::testing::TempDir dir;
    apogee::Storm storm(options, dir);
    try {
      storm.Run();
    } catch (const std::exception& error) {
      const std::string kept = dir.path() + ".kept";
      std::filesystem::rename(dir.path(), kept);
      std::fprintf(stderr, "kill_storm: %s\nthe files are in %s\n", error.what(), kept.c_str());
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kill_storm: %s\n", error.what());
    return 1;
  }
  return 0;
}
