// SPDX-License-Identifier: Apache-2.0

// ErrorFeedback: averages tensors of parameters over ranks with one bit per element. The errors are
// kept as the parameters' states "worker_error" and "server_error" (StateKind::kPerRank, f32 or
// f64).
//
//   ErrorFeedback feedback;
//   feedback.SetRanks(ranks);
//   std::string bad = feedback.Average(jobs, {.shared_scale = true});    // in place
//   if (!bad.empty()) ...                          // the value of parameter `bad` is not finite
//
// Mask. A sign cannot express zero, so elements that never had a gradient (second moment 0) are
// masked: they are not sent, and their mean is 0. Also masked are elements whose second moment is
// below 1e-12 of the tensor's mean. Their gradients, below 1e-6 of the others, are rounding errors
// (key biases in attention, for instance), and dividing the tensor's scale by the root of their
// second moment would give huge steps. The user can mask further elements (SetMask). A single rank
// sends nothing but masks the same elements.
//
// With more than one rank, Average is collective: every rank of the group calls it, and so do the
// ranks that hold other parts of the parameters.
#ifndef APOGEE_OPTIM_ONEBIT_ERROR_FEEDBACK_H_
#define APOGEE_OPTIM_ONEBIT_ERROR_FEEDBACK_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/comm/compressed_all_reduce.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/param_view.h"
#include "apogee/optim/states/state_store.h"

namespace apogee::optim {

struct FeedbackJob {
  ParamView* view;
  Tensor value;  // as many elements as the view's value, of its compute dtype
};

class ErrorFeedback {
 public:
  void SetRanks(const GradientRanks& ranks) {
    ranks_ = ranks;
    ForgetMasks();  // their padding depends on the number of ranks
  }
  const GradientRanks& ranks() const { return ranks_; }
  int size() const { return comm::GroupSize(ranks_.group); }

  // Keeps elements of the parameter's momentum at 0 where `mask` is 0. `mask` has the parameter's
  // logical shape and dtype u8, f32 or f64; throws Error for another dtype.
  void SetMask(const std::string& parameter, const Tensor& mask);
  // Masks are made from the second moments at first use. Call when second moments have changed.
  void ForgetMasks() { live_.clear(); }

  // Replaces each value by its mean over the ranks, from one bit per element. If a value is not
  // finite on some rank, changes nothing on any rank and returns the name of the first such
  // parameter, the same on every rank; else returns "". With one rank, only applies the masks.
  std::string Average(std::span<const FeedbackJob> jobs, const comm::CompressionOptions& options);
  // Sets masked elements of the value to 0, as Average does.
  void ApplyMask(const FeedbackJob& job, const comm::CompressionOptions& options);
  // Sets elements to 0 where the user's mask is 0. For DeepSpeed's form, which has no automatic
  // mask.
  void ApplyUserMask(const FeedbackJob& job) const;

  // Appends the declarations of a parameter's error states; none with one rank.
  void AppendSpecs(const ParamView& view, const comm::CompressionOptions& options,
                   std::vector<StateSpec>& specs) const;
  // Creates missing error states as zeros; none with one rank.
  void MakeErrors(ParamView& view, const comm::CompressionOptions& options) const;
  static void DropErrors(ParamView& view);

 private:
  // The first of `count` jobs that is bad on this rank (`bad`) or on a rank that holds other parts
  // of the parameters; `count`: none.
  size_t AgreeOnBad(size_t bad, size_t count, const ContextPtr& context) const;
  // One bit per element that is not masked; undefined: no element is.
  const Tensor& LiveOf(const ParamView& view, const comm::CompressedAllReduce& reduce);
  // The user's mask, cut to the view's layout; undefined: none.
  Tensor UserMask(const ParamView& view) const;

  GradientRanks ranks_;
  std::map<std::string, Tensor> masks_;
  std::map<std::string, Tensor> live_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ONEBIT_ERROR_FEEDBACK_H_
