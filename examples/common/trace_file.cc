// SPDX-License-Identifier: Apache-2.0

#include "apogee/examples/common/trace_file.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "apogee/comm/launch.h"
#include "apogee/core/trace/trace_writer.h"

using namespace apogee;

void DeclareTraceFlag(CLI::App& app, std::string& path) {
  app.add_option("--trace", path,
                 "Write a timeline of all ranks to this file, for ui.perfetto.dev; it is in memory "
                 "until the run ends, so use it for short runs");
}

TraceFile::TraceFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  // With several processes, each records its own rank in a file of its own.
  const auto process = comm::StartedProcesses();
  if (process.ok() && process->size > 1) {
    const std::filesystem::path whole(path_);
    path_ = (whole.parent_path() / whole.stem()).string() + ".rank" +
            std::to_string(process->rank) + whole.extension().string();
  }
  const absl::Status status = CheckTraceWritable(path_);
  if (!status.ok()) Throw("--trace: ", Message(status));
  trace_.emplace();
}

void TraceFile::Write() {
  if (!trace_) return;
  const absl::Status status = WriteTrace(*trace_, path_);
  trace_.reset();  // once
  OkOrThrow(status);
}

TraceFile::~TraceFile() {
  try {
    Write();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}
