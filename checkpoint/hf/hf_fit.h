// SPDX-License-Identifier: Apache-2.0

// Checks whether the weights in files fit the tensors asked for, and lists the differences. Only
// hf_weights.cc needs it.
//
//   APOGEE_ASSIGN_OR_RETURN(HfFit fit, CompareNames(weights, targets, options, "dir"));
//   if (!fit.names.tied_head.empty()) {
//     APOGEE_ASSIGN_OR_RETURN(const std::string difference, CompareTied(weights, fit.names));
//     NoteTied(difference, fit);
//   }
//   APOGEE_RETURN_IF_ERROR(CheckFit(fit, "dir", options.strict));
#ifndef APOGEE_CHECKPOINT_HF_HF_FIT_H_
#define APOGEE_CHECKPOINT_HF_HF_FIT_H_

#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_names.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee::checkpoint {

struct HfFit {
  LoadReport report;
  HfNames names;
  std::vector<std::string> problems;  // a sentence per wrong shape or dtype
  std::string tied_problem;           // how the head differs from the table it is tied to
};

// Compares everything except the values of a tied head, which it counts as unexpected.
absl::StatusOr<HfFit> CompareNames(const HfWeights& weights, const std::vector<TensorPart>& targets,
                                   const LoadWeightsOptions& options, const std::string& path);
// Reads the head and the table: "" if they are equal, else how they differ.
absl::StatusOr<std::string> CompareTied(const HfWeights& weights, const HfNames& names);
// Records the result of CompareTied: a head that is equal is no longer unexpected.
void NoteTied(const std::string& difference, HfFit& fit);

// One InvalidArgument with everything that does not fit. Long lists are shortened.
absl::Status CheckFit(const HfFit& fit, const std::string& path, bool strict);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_FIT_H_
