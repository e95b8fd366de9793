// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/some_ranks.h"
#include "apogee/matrix/matrix.h"
#include "apogee/matrix/report.h"
#include "apogee/matrix/sabotage.h"
#include "apogee/tensor/make_context.h"
#include "apogee/tools/command.h"

namespace apogee::tools {
namespace {

struct MatrixFlags {
  matrix::MatrixOptions options;
  std::string comm = "auto";
  std::string sabotage = "none";
  std::string json;
  std::string markdown;
};

// Throws Error if the file cannot be written, before any cell runs.
std::ofstream OpenForWriting(const std::string& path) {
  std::ofstream file(path);
  APOGEE_CHECK(file.good(), "matrix: cannot write ", path);
  return file;
}

// Rank 0 opens the files; if it throws, the other processes throw the same error.
void OpenFiles(const MatrixFlags& flags, int rank, std::ofstream& json, std::ofstream& markdown) {
  std::vector<std::string> error(1);
  try {
    if (rank == 0 && !flags.json.empty()) json = OpenForWriting(flags.json);
    if (rank == 0 && !flags.markdown.empty()) markdown = OpenForWriting(flags.markdown);
  } catch (const Error& refused) {
    error[0] = refused.what();
  }
  comm::ShareByRank(error);
  if (!error[0].empty()) Throw(error[0]);
}

// "2/3". Throws CLI::ValidationError for text that names no shard.
void SetShard(const std::string& text, matrix::MatrixOptions& options) {
  char rest = 0;
  const int num_read = std::sscanf(text.c_str(), "%" SCNd64 "/%" SCNd64 "%c", &options.shard,
                                   &options.num_shards, &rest);
  if (num_read != 2 || options.shard < 1 || options.shard > options.num_shards) {
    throw CLI::ValidationError("--shard", "expected I/N with 1 <= I <= N, got '" + text + "'");
  }
}

int Run(const MatrixFlags& flags) {
  const int rank = ValueOrThrow(comm::StartedProcesses()).rank;
  matrix::MatrixOptions options = flags.options;
  options.comm = ValueOrThrow(comm::ParseBackend(flags.comm));
  options.sabotage = matrix::SabotageFromName(flags.sabotage);
  if (matrix::ChooseCells(options).empty()) {
    if (rank == 0) {
      std::cerr << "apogee matrix: no cell matches \"" << options.only << "\"";
      if (options.num_shards > 1) std::cerr << " in this shard";
      std::cerr << "\n";
    }
    return 2;
  }
  std::ofstream json, markdown;
  OpenFiles(flags, rank, json, markdown);
  std::ostream nowhere(nullptr);
  const std::vector<matrix::CellReport> reports =
      matrix::RunMatrix(options, rank == 0 ? std::cout : nowhere);
  if (reports.empty()) {
    if (rank == 0) std::cerr << "apogee matrix: no cell is left; start more processes\n";
    return 2;
  }
  if (json.is_open()) matrix::WriteJson(reports, json);
  if (markdown.is_open()) matrix::WriteMarkdown(reports, markdown);
  for (const matrix::CellReport& report : reports) {
    if (report.verdict == matrix::Verdict::kFail) return 1;
  }
  return 0;
}

}  // namespace

void AddMatrixCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<MatrixFlags>();
  CLI::App* command = app.add_subcommand(
      "matrix", "Compare boosted runs with the one-rank run: optimizers, plugins, layouts");
  command->add_option("--only", flags->options.only,
                      "Only cells whose name contains this text or matches it as a shell pattern");
  command
      ->add_option(
          "--sample", flags->options.sample,
          "A sample of at most this many cells that covers all pairs of axis values; 0: all cells")
      ->check(CLI::Range(0, 1000000));
  command->add_option_function<std::string>(
      "--shard", [flags](const std::string& text) { SetShard(text, flags->options); },
      "I/N: every N-th of these cells, beginning with the I-th");
  command->add_option("--device", flags->options.device, "Device of both runs: cpu, cuda or cuda:N")
      ->check([](const std::string& name) { return Message(ParseDevice(name).status()); });
  command
      ->add_option("--comm", flags->comm,
                   "Backend for collectives: local (ranks are threads), mpi, tcp or nccl (ranks "
                   "are processes), auto")
      ->check([](const std::string& text) { return Message(comm::ParseBackend(text).status()); });
  command->add_option("--jobs", flags->options.jobs,
                      "Cells to run at the same time, each of another optimizer");
  command->add_flag("--memory", flags->options.memory,
                    "Compare the memory of each run with its price by a dry run");
  command->add_option("--sabotage", flags->sabotage, "Break the boosted runs on purpose")
      ->check(CLI::IsMember(matrix::SabotageNames()));
  command->add_option("--json", flags->json, "Write every cell's report to this file");
  command->add_option("--markdown", flags->markdown,
                      "Write tables by optimizer and plugin to this file");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
