// SPDX-License-Identifier: Apache-2.0

// ErrorFeedback: 1-bit means of per-parameter tensors for an optimizer, with the errors kept as the
// parameters' states "worker_error" and "server_error" (StateKind::kPerRank, f32 or f64).
//
//   ErrorFeedback feedback;
//   feedback.SetRanks(ranks);
//   std::string bad = feedback.Average(jobs, {.shared_scale = true});    // in place, or a name
//
// Elements whose second moment is 0 have never had a gradient: a sign cannot say so, so they are
// masked out, together with what a user's mask leaves out. So are those whose second moment is
// below 1e-12 of the tensor's mean: their gradients, below 1e-6 of the others, are rounding errors
// (of key biases in attention, for instance), and the tensor's scale divided by their root would
// throw them anywhere. One rank masks the same elements, though it sends nothing: without a second
// moment there is no step to take. With more than one rank, collective, also over the ranks that
// hold other parts of the parameters.
#ifndef APOGEE_OPTIM_ERROR_FEEDBACK_H_
#define APOGEE_OPTIM_ERROR_FEEDBACK_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/comm/compressed_all_reduce.h"
#include "apogee/optim/local_gradients.h"
#include "apogee/optim/param_view.h"
#include "apogee/optim/state_dict.h"

namespace apogee::optim {

class ErrorFeedback {
 public:
  struct Job {
    ParamView* view;
    Tensor value;  // as many elements as the view's value, of its compute dtype
  };

  void SetRanks(const GradientRanks& ranks) {
    ranks_ = ranks;
    ForgetMasks();  // they are padded for a number of ranks
  }
  const GradientRanks& ranks() const { return ranks_; }
  int size() const { return comm::GroupSize(ranks_.group); }

  // Elements of the parameter's momentum that stay 0 where `mask`, of the parameter's logical shape
  // (u8, f32 or f64), is 0.
  void SetMask(const std::string& parameter, const Tensor& mask);
  // Masks are made from second moments at first use: call when these have changed.
  void ForgetMasks() { live_.clear(); }

  // Means over the ranks, made from one bit per element. Returns the name of the first parameter
  // whose value is not finite on some rank, of those with other parts too; then nothing has changed
  // on any. One rank: only masks.
  std::string Average(std::span<const Job> jobs, const comm::CompressionOptions& options);
  // value = 0 where Average would make it 0.
  void ApplyMask(const Job& job, const comm::CompressionOptions& options);
  // value = 0 where the user's mask is 0; for DeepSpeed's form, whose messages count all elements.
  void ApplyUserMask(const Job& job) const;

  // The error states of a parameter of these ranks.
  void AppendSpecs(const ParamView& view, const comm::CompressionOptions& options,
                   std::vector<StateSpec>& specs) const;
  // Makes them where they are missing, of zeros. One rank has none.
  void MakeErrors(ParamView& view, const comm::CompressionOptions& options) const;
  static void DropErrors(ParamView& view);

 private:
  // What ranks with other parts know as well: the first of `count` jobs that is bad on any of them;
  // `count`: none.
  size_t AgreeOnBad(size_t bad, size_t count, const ContextPtr& context) const;
  // Bits of what takes part; undefined: everything.
  const Tensor& LiveOf(const ParamView& view, const comm::CompressedAllReduce& reduce);
  // The user's mask, cut as the view is; undefined: none.
  Tensor UserMask(const ParamView& view) const;

  GradientRanks ranks_;
  std::map<std::string, Tensor> masks_;
  std::map<std::string, Tensor> live_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ERROR_FEEDBACK_H_
