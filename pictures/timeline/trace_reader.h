// SPDX-License-Identifier: Apache-2.0

// Reads the pipeline work from an untrusted trace file (core/trace/trace.h).
//
//   APOGEE_ASSIGN_OR_RETURN(std::vector<PipelineEvent> events,
//                           ReadPipelineEvents(text, "run.json"));
//
// Both forms of the format work: an object with the list "traceEvents", or the list alone. Reads
// complete events (ph X) of the category "pipeline" whose args.kind is F, B or W. They must have
// the integers pid, args.step, args.micro_batch and args.chunk, and ts and dur in microseconds.
// Everything else is skipped. Needs 48 bytes of memory per event read.
//
// Errors: DataLoss that names the file, the byte and the problem.
#ifndef APOGEE_PICTURES_TIMELINE_TRACE_READER_H_
#define APOGEE_PICTURES_TIMELINE_TRACE_READER_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/pictures/timeline/pipeline_timeline.h"

namespace apogee {

// `path` is for messages.
absl::StatusOr<std::vector<PipelineEvent>> ReadPipelineEvents(const std::string& text,
                                                              const std::string& path);

}  // namespace apogee

#endif  // APOGEE_PICTURES_TIMELINE_TRACE_READER_H_
