// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "apogee/core/text/printable.h"
#include "apogee/tools/command.h"
#include "apogee/tools/diff_runs.h"
#include "apogee/tools/diff_tensors.h"

namespace apogee::tools {
namespace {

struct DiffFlags {
  std::string a, b;
  int64_t limit = 10;
};

absl::StatusOr<bool> DiffStores(const DiffFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const TensorStore a, TensorStore::Open(flags.a));
  APOGEE_ASSIGN_OR_RETURN(const TensorStore b, TensorStore::Open(flags.b));
  APOGEE_ASSIGN_OR_RETURN(const TensorsDiff diff,
                          DiffTensors({&a, flags.a}, {&b, flags.b}, {.limit = flags.limit}));
  diff.Print(std::cout);
  return diff.same();
}

absl::StatusOr<bool> Diff(const DiffFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const auto a, report::RunFolder::Find(flags.a));
  APOGEE_ASSIGN_OR_RETURN(const auto b, report::RunFolder::Find(flags.b));
  if (a && b) return DiffRuns(*a, *b, flags.limit, std::cout);
  if (!a && !b) return DiffStores(flags);
  const std::string &run = a ? flags.a : flags.b, &other = a ? flags.b : flags.a;
  APOGEE_RETURN_IF_ERROR(TensorStore::Open(other).status());
  return InvalidArgument(run, " is the folder of a run and ", other,
                         " is not: give two runs, or a checkpoint of the run, a folder step-N");
}

int Run(const DiffFlags& flags) {
  const absl::StatusOr<bool> same = Diff(flags);
  if (same.ok()) return *same ? 0 : 1;
  std::cerr << "apogee diff: " << Printable(Message(same.status())) << "\n";
  return 2;
}

}  // namespace

void AddDiffCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DiffFlags>();
  CLI::App* command = app.add_subcommand(
      "diff", "Compare the tensors of two checkpoints or weights, bit for bit, or two runs");
  command
      ->add_option("a", flags->a,
                   "A checkpoint or weights, as for `apogee inspect`; or the --out of a run, or a "
                   "folder of checkpoints")
      ->required();
  command->add_option("b", flags->b, "The other one, of the same kind")->required();
  command->add_option("--limit", flags->limit, "Number of differing tensors to print")
      ->check(CLI::Range(0, 1000000));
  command->footer(
      "Relative: the largest |a - b| divided by the largest |a| of the tensor. Of the update: "
      "divided by the largest change of a since the last checkpoint in which the runs are equal. "
      "Exit status: 0 no difference in the steps and tensors compared, 1 different, 2 wrong use or "
      "bad input.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
