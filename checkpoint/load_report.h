// SPDX-License-Identifier: Apache-2.0

// LoadReport: the names that a model and the files that were loaded into it do not share.
//
//   auto report = booster.load_model("hub/gpt2", {.strict = false});
//   for (const std::string& name : report->missing) std::puts(name.c_str());
#ifndef APOGEE_CHECKPOINT_LOAD_REPORT_H_
#define APOGEE_CHECKPOINT_LOAD_REPORT_H_

#include <string>
#include <vector>

namespace apogee::checkpoint {

struct LoadReport {
  std::vector<std::string> missing;     // asked for but not there: targets stay unchanged
  std::vector<std::string> unexpected;  // there but not asked for
  // Special names of hub files (hf_names.h). There and known to be of no use: buffers of older
  // versions of the library, and parts that only other heads read. Ignored.
  std::vector<std::string> buffers;
  std::string prefix;  // the prefix of the asked names that the files lack
  // There, not asked for, and equal to the tensor that this model has instead: a tied head.
  std::vector<std::string> tied;
  // The prefixes that were given, or found since none was (LoadWeightsOptions).
  std::string model_prefix, file_prefix;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_LOAD_REPORT_H_
