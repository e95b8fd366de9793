// SPDX-License-Identifier: Apache-2.0

// --trace FILE of the programs: what every rank did when, for ui.perfetto.dev and `apogee
// timeline`.
//
//   DeclareTraceFlag(app, flags.trace);
//   TraceFile trace(flags.trace);                       // main, before any rank
//   OkOrThrow(comm::launch({..., .trace = trace.get()}, ...));
//   booster.TraceTo(world.trace(), world.rank());       // every rank, before boost
#ifndef APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_
#define APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_

#include <optional>
#include <string>

#include "apogee/core/trace.h"

namespace CLI {
class App;
}  // namespace CLI

void DeclareTraceFlag(CLI::App& app, std::string& path);

class TraceFile {
 public:
  // An empty path: no trace. Throws Error for one that cannot be written.
  explicit TraceFile(std::string path);
  // Writes the file, of a run that failed too; prints an error.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Null without --trace.
  apogee::Trace* get() { return trace_ ? &*trace_ : nullptr; }
  // What the destructor does otherwise, but throws Error. After the ranks have ended.
  void Write();

 private:
  std::string path_;
  std::optional<apogee::Trace> trace_;
};

#endif  // APOGEE_EXAMPLES_COMMON_TRACE_FILE_H_
