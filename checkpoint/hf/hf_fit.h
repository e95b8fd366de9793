// SPDX-License-Identifier: Apache-2.0

// Checks whether the weights in files fit the tensors asked for, and lists the differences.
//
//   APOGEE_ASSIGN_OR_RETURN(HfFit fit, CompareNames(weights, targets, options, "dir"));
//   for (const HfTie& tie : fit.names.ties) {
//     APOGEE_ASSIGN_OR_RETURN(const std::string difference, CompareTied(weights, tie));
//     NoteTied(tie, difference, fit);
//   }
//   APOGEE_RETURN_IF_ERROR(CheckFit(fit, "dir", options.strict));
//
// FitWeights is these lines.
#ifndef APOGEE_CHECKPOINT_HF_HF_FIT_H_
#define APOGEE_CHECKPOINT_HF_HF_FIT_H_

#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_names.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee::checkpoint {

// A tensor that is asked for. Of names that share memory one must be there; null shares with none.
struct HfTarget {
  std::string name;
  Shape shape;
  DType dtype;
  const void* memory = nullptr;
};

struct HfFit {
  LoadReport report;
  HfNames names;
  std::vector<std::string> problems;       // a sentence per wrong shape or dtype
  std::vector<std::string> tied_problems;  // how heads differ from the tables they are tied to
  // No prefix was given, and several fit.
  std::vector<NamePrefixes> fitting;
};

// Compares everything except the values of tied heads, which it counts as unexpected. If no prefix
// is given and the names do not match, uses the one with which no tensor of the files is
// unexpected.
absl::StatusOr<HfFit> CompareNames(const HfWeights& weights, const std::vector<HfTarget>& targets,
                                   const LoadWeightsOptions& options, const std::string& path);
// Reads the head and the table: "" if they are equal, else how they differ.
absl::StatusOr<std::string> CompareTied(const HfWeights& weights, const HfTie& tie);
// Records the result of CompareTied: a head that is equal is no longer unexpected.
void NoteTied(const HfTie& tie, const std::string& difference, HfFit& fit);
// One InvalidArgument with everything that does not fit. Long lists of names are shortened.
absl::Status CheckFit(const HfFit& fit, const std::string& path, bool strict);

// Not collective.
absl::StatusOr<HfFit> FitWeights(const HfWeights& weights, const std::vector<HfTarget>& targets,
                                 const LoadWeightsOptions& options, const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_FIT_H_
