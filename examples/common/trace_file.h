// SPDX-License-Identifier: Apache-2.0

// --trace FILE: a timeline of all ranks, for ui.perfetto.dev and `apogee timeline`.
//
//   DeclareTraceFlag(app, flags.trace);
//   TraceFile trace(flags.trace);                       // main, before any rank
//   OkOrThrow(comm::launch({..., .trace = trace.get()}, ...));
//   booster.TraceTo(world.trace(), world.rank());       // every rank, before boost
#ifndef APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_
#define APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_

#include <optional>
#include <string>

#include "apogee/core/trace/trace.h"

namespace CLI {
class App;
}  // namespace CLI

void DeclareTraceFlag(CLI::App& app, std::string& path);

class TraceFile {
 public:
  // An empty path means no trace. Throws Error if the path cannot be written.
  explicit TraceFile(std::string path);
  // Writes the file, even if the run failed; prints an error.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Null without --trace.
  apogee::Trace* get() { return trace_ ? &*trace_ : nullptr; }
  // Writes the file as the destructor does, but throws Error. Call it after the ranks have ended.
  void Write();

 private:
  std::string path_;
  std::optional<apogee::Trace> trace_;
};

#endif  // APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_
