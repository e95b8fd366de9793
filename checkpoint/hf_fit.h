// SPDX-License-Identifier: Apache-2.0

// Whether weights in files fit what is asked of them, and what to say when they do not; only
// hf_weights.cc needs it.
//
//   APOGEE_ASSIGN_OR_RETURN(HfFit fit, CompareNames(weights, targets, options, "dir"));
//   fit.tied = CompareTied(weights, fit.names) ...        // where names.tied_head is not ""
//   APOGEE_RETURN_IF_ERROR(CheckFit(fit, "dir", options.strict));
#ifndef APOGEE_CHECKPOINT_HF_FIT_H_
#define APOGEE_CHECKPOINT_HF_FIT_H_

#include <string>
#include <vector>

#include "apogee/checkpoint/hf_names.h"
#include "apogee/checkpoint/hf_weights.h"

namespace apogee::checkpoint {

struct HfFit {
  LoadReport report;
  HfNames names;
  std::vector<std::string> problems;  // of shapes and dtypes, a sentence each
  std::string tied_problem;           // how the head differs from the table that it is tied to
};

// All but the values of a tied head, which counts as unexpected.
absl::StatusOr<HfFit> CompareNames(const HfWeights& weights, const std::vector<TensorPart>& targets,
                                   const LoadWeightsOptions& options, const std::string& path);
// Reads both: "" where they are equal, else how they differ.
absl::StatusOr<std::string> CompareTied(const HfWeights& weights, const HfNames& names);
// Takes the answer in: a head that is equal is no longer unexpected.
void NoteTied(const std::string& difference, HfFit& fit);

// One InvalidArgument with everything that does not fit; long lists are cut.
absl::Status CheckFit(const HfFit& fit, const std::string& path, bool strict);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_FIT_H_
