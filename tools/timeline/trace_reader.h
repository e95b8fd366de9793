// SPDX-License-Identifier: Apache-2.0

// Pipeline work out of a trace (core/trace.h), text of anybody.
//
//   APOGEE_ASSIGN_OR_RETURN(std::vector<PipelineEvent> events, ReadPipelineEvents(text,
//   "run.json"));
//
// Takes both forms of the format: an object with the list "traceEvents", or the list alone. Of the
// category "pipeline" it takes complete events (ph X) whose args.kind is F, B or W; these must have
// args.step, args.micro_batch, args.chunk and pid, whole numbers, and ts and dur, in microseconds.
// Everything else is passed over. Holds 48 bytes per event taken.
//
// Errors: DataLoss that names the file, the byte and the problem.
#ifndef APOGEE_TOOLS_TIMELINE_TRACE_READER_H_
#define APOGEE_TOOLS_TIMELINE_TRACE_READER_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/tools/timeline/pipeline_timeline.h"

namespace apogee::tools {

// `path`: for messages.
absl::StatusOr<std::vector<PipelineEvent>> ReadPipelineEvents(const std::string& text,
                                                              const std::string& path);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_TIMELINE_TRACE_READER_H_
