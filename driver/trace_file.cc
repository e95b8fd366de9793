// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/trace_file.h"

#include <cstdio>
#include <filesystem>
#include <utility>

#include "apogee/comm/launch.h"
#include "apogee/core/trace/trace_writer.h"

namespace apogee::driver {

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

}  // namespace apogee::driver
