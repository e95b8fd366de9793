// SPDX-License-Identifier: Apache-2.0

// Runs an example in an odd environment: variables, limits, closed descriptors, a full disk.
//
//   const SmallText text(dir);
//   const HostileResult result = RunExample(APOGEE_TRAIN_GPT, text.TinyRun("--steps 3"), dir,
//                                           {.variables = "OMP_DYNAMIC=true"});
//   EXPECT_EQ(result.signal, 0) << result.err;
//
// The program replaces the shell that has set everything up, so an end by a signal shows as one.
#ifndef APOGEE_TESTS_HOSTILE_RUN_EXAMPLE_H_
#define APOGEE_TESTS_HOSTILE_RUN_EXAMPLE_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/program.h"

namespace apogee::testing {

struct Hostile {
  // Of the environment, "NAME=value NAME=value".
  std::string variables = {};
  // Shell commands before the program starts: "ulimit -n 20; exec 0<&-".
  std::string before = {};
  // The words before the program on its line: "taskset -c 0", "unshare -m".
  std::string wrapper = {};
  // Redirections instead of files for stdout and stderr: ">/dev/full", "2>&-".
  std::string redirect = {};
};

struct HostileResult {
  int exit_code = -1;  // -1: a signal ended it
  int signal = 0;      // 0: it ended by itself
  std::string out, err;
};

// `dir` keeps the files stdout and stderr.
inline HostileResult RunExample(const std::string& program, const std::string& flags,
                                const TempDir& dir, const Hostile& hostile = {}) {
  dir.Write("stdout", "");
  dir.Write("stderr", "");
  const std::string command = hostile.before + "\nexec env " + hostile.variables + " " +
                              hostile.wrapper + " " + program + " " + flags + " >" +
                              (dir / "stdout") + " 2>" + (dir / "stderr") + " " + hostile.redirect;
  const pid_t child = fork();
  if (child == 0) {
    // Closes the files that ctest and this test have open, because limits count them.
    for (int fd = STDERR_FILENO + 1; fd < 256; ++fd) close(fd);
    execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child) << command;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          ReadFile(dir / "stdout"), ReadFile(dir / "stderr")};
}

// Whether this user can run the shell command `command` on this machine. If not, skip the test.
inline bool CanRun(const std::string& command) {
  return std::system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0;
}

// A text, and the flags of a model that trains on it within moments.
class SmallText {
 public:
  explicit SmallText(const TempDir& dir) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i % 40) + " of the text\n";
    path_ = dir.Write("text.txt", text);
  }

  const std::string& path() const { return path_; }
  // `flags` come last and win.
  std::string TinyRun(const std::string& flags) const {
    return "--data " + path_ +
           " --layers 2 --heads 4 --dim 32 --block 32 --batch 12 --sample 0 --threads 2 --steps "
           "3 " +
           flags;
  }

 private:
  std::string path_;
};

// The results of a run: loss and gradient norm of each step, and the validation loss. Exact, as the
// files have them.
inline std::vector<double> Numbers(const std::string& out_folder) {
  std::vector<double> numbers;
  for (const nlohmann::json& row : ReadRows(out_folder + "/metrics.jsonl")) {
    numbers.push_back(row.at("loss"));
    numbers.push_back(row.at("grad_norm"));
  }
  for (const nlohmann::json& row : ReadRows(out_folder + "/validation.jsonl")) {
    numbers.push_back(row.at("loss"));
  }
  return numbers;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_HOSTILE_RUN_EXAMPLE_H_
