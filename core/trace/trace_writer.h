// SPDX-License-Identifier: Apache-2.0

// Writes a Trace (core/trace/trace.h) as a file.
//
//   OkOrThrow(CheckTraceWritable("run.json"));      // before a run of hours
//   ... trace.Lane(rank, "compute"), spans ...
//   OkOrThrow(WriteTrace(trace, "run.json"));
#ifndef APOGEE_CORE_TRACE_TRACE_WRITER_H_
#define APOGEE_CORE_TRACE_TRACE_WRITER_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee {

class Trace;

// Writes everything up to now. The new file replaces an older one at `path` once it is complete. An
// error names the path and the operating system's reason, and leaves the older file as it was.
absl::Status WriteTrace(const Trace& trace, const std::string& path);
// Whether WriteTrace could write there, as far as one can know now. Leaves nothing behind.
absl::Status CheckTraceWritable(const std::string& path);

}  // namespace apogee

#endif  // APOGEE_CORE_TRACE_TRACE_WRITER_H_
