// SPDX-License-Identifier: Apache-2.0

// GradMarks: what the ranks tell each other about gradients before an update: which of them there
// are, and on request whether they are finite and their norm. One collective, whatever their
// number.
//
//   GradMarks marks(views, /*norms=*/true, NormKind::kL2);
//   marks.SetPresent(0);
//   marks.SetNorm(0, chunk.result);         // of this rank's elements, as grad_norm gives it
//   marks.Reduce(reducer);                  // from here on: what holds for the whole gradients
//   marks.TotalNorm();
//
// On a GPU they may stay there: MarkOnDevice() takes the place of the Set functions,
// ReduceOnDevice() that of Reduce(), and Fetch(), which waits, makes the getters good.
#ifndef APOGEE_OPTIM_GRAD_MARKS_H_
#define APOGEE_OPTIM_GRAD_MARKS_H_

#include <optional>
#include <vector>

#include "apogee/optim/device_decision.h"
#include "apogee/optim/kernels.h"
#include "apogee/optim/stat_values.h"

namespace apogee::optim {

class GradMarks {
 public:
  // At least one view; the same ones, in the same order, on every rank. `digest`: of the options,
  // which the ranks compare; none where there is one rank.
  GradMarks(std::vector<ParamView*> views, bool norms, NormKind kind,
            std::optional<uint64_t> digest = {});

  void SetPresent(size_t index);
  // Present, too. `result`: a sum of squares or a maximum, as the kernel gives it.
  void SetNorm(size_t index, double result);
  // Without `fetch` the getters go on to say what was set.
  void Reduce(StatReducer& reducer, bool fetch = true);

  // Gradients of the others are absent. Needs norms.
  void MarkOnDevice(DeviceDecision& decision, std::span<const MarkChunk> chunks);
  void ReduceOnDevice(StatReducer& reducer) { reducer.Reduce(buffer_); }
  void Fetch() { numbers_ = ReadStats(buffer_, section()); }
  const double* on_device() const {
    return static_cast<const double*>(StatValues(buffer_, section()).raw());
  }
  const ParamView& view(size_t index) const { return *views_[index]; }
  int64_t count() const { return static_cast<int64_t>(views_.size()); }

  bool has_digest() const { return slots_ > 0; }
  // Whether all ranks gave the same digest; true without one.
  bool DigestsAgree() const;
  bool present(size_t index) const;
  // The first view whose gradient is not finite; null: all are.
  const ParamView* FirstNonFinite() const;
  // NaN where a norm is.
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
  int64_t slots_;  // of the digest, behind the marks
  StatBuffer buffer_;
  std::vector<double> numbers_;  // for each view its mark and, if asked for, its norm
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GRAD_MARKS_H_
