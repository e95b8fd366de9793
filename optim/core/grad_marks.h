// SPDX-License-Identifier: Apache-2.0

// GradMarks: tells all ranks before an update which gradients are present and, on request, whether
// they are finite and what their norm is. One all-reduce, however many gradients there are.
//
//   GradMarks marks(views, /*norms=*/true, NormKind::kL2);
//   marks.SetPresent(0);
//   marks.SetNorm(0, chunk.result);         // of this rank's elements, from the kernel grad_norm
//   marks.Reduce(reducer);                  // from here on the getters are for whole gradients
//   marks.TotalNorm();
//
// On a GPU the marks may stay there: call MarkOnDevice() instead of the Set functions, and
// ReduceOnDevice() instead of Reduce(). Fetch() waits and makes the getters valid.
#ifndef APOGEE_OPTIM_CORE_GRAD_MARKS_H_
#define APOGEE_OPTIM_CORE_GRAD_MARKS_H_

#include <optional>
#include <vector>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {

class GradMarks {
 public:
  // `views`: at least one, the same in the same order on every rank. `digest`: a hash of the
  // options, which ranks compare; leave it out with one rank.
  GradMarks(std::vector<ParamView*> views, bool norms, NormKind kind,
            std::optional<uint64_t> digest = {});

  void SetPresent(size_t index);
  // Also marks the gradient as present. `result`: NormChunk::result.
  void SetNorm(size_t index, double result);
  // Collective. With `fetch` = false the getters still return the numbers set on this rank.
  void Reduce(StatReducer& reducer, bool fetch = true);

  // Marks the gradients of `chunks`; those that no call marks are absent. Only if constructed with
  // norms.
  void MarkOnDevice(DeviceDecision& decision, std::span<const MarkChunk> chunks);
  void ReduceOnDevice(StatReducer& reducer);
  void Fetch() { numbers_ = ReadStats(buffer_, section()); }
  const double* on_device() const {
    return static_cast<const double*>(StatValues(buffer_, section()).raw());
  }
  const ParamView& view(size_t index) const { return *views_[index]; }
  int64_t count() const { return static_cast<int64_t>(views_.size()); }

  bool has_digest() const { return slots_ > 0; }
  // Whether all ranks passed the same digest; true without one.
  bool DigestsAgree() const;
  bool present(size_t index) const;
  // The first view whose gradient is not finite; null: all are finite.
  const ParamView* FirstNonFinite() const;
  // The norm over all gradients; NaN if the norm of one is NaN.
  double TotalNorm() const;

 private:
  double* at(size_t index) { return numbers_.data() + index * stride_; }
  const double* at(size_t index) const { return numbers_.data() + index * stride_; }
  StatSection section() const {
    return kind_ == NormKind::kMax ? StatSection::kMaxima : StatSection::kSums;
  }

  std::vector<ParamView*> views_;
  NormKind kind_;
  size_t stride_;
  int64_t slots_;  // of the digest, after the marks
  StatBuffer buffer_;
  std::vector<double> numbers_;  // per view: its mark and, with norms, the number behind its norm
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_GRAD_MARKS_H_
