// SPDX-License-Identifier: Apache-2.0

// --trace FILE: a timeline of all ranks, for ui.perfetto.dev and `apogee timeline`.
//
//   TraceFile trace(flags.trace);                       // main, before any rank
//   OkOrThrow(comm::launch({..., .trace = trace.get()}, ...));
//   booster.TraceTo(world.trace(), world.rank());       // every rank, before boost
#ifndef APOGEE_DRIVER_TRACE_FILE_H_
#define APOGEE_DRIVER_TRACE_FILE_H_

#include <optional>
#include <string>

#include "apogee/core/trace/trace.h"

namespace apogee::driver {

class TraceFile {
 public:
  // An empty path means no trace. Throws Error if the path cannot be written.
  explicit TraceFile(std::string path);
  // Writes the file, even if the run failed; prints an error.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Null without --trace.
  Trace* get() { return trace_ ? &*trace_ : nullptr; }
  // Writes the file as the destructor does, but throws Error. Call it after the ranks have ended.
  void Write();

 private:
  std::string path_;
  std::optional<Trace> trace_;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_TRACE_FILE_H_
