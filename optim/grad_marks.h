// GradMarks: what the ranks tell each other about gradients before an update: which of them there
// are, and on request whether they are finite and their norm. One collective, whatever their
// number.
//
//   GradMarks marks(views, /*norms=*/true, NormKind::kL2);
//   marks.SetPresent(0);
//   marks.SetNorm(0, chunk.result);         // of this rank's elements, from
//   OptimKernels::grad_norm marks.Reduce(reducer);                  // from here on: what holds for
//   the whole gradients marks.TotalNorm();
#ifndef APOGEE_OPTIM_GRAD_MARKS_H_
#define APOGEE_OPTIM_GRAD_MARKS_H_

#include <vector>

#include "apogee/optim/kernels.h"
#include "apogee/optim/stat_values.h"

namespace apogee::optim {

class GradMarks {
 public:
  // At least one view; the same ones, in the same order, on every rank.
  GradMarks(std::vector<ParamView*> views, bool norms, NormKind kind);

  void SetPresent(size_t index);
  // Present, too. `result`: a sum of squares or a maximum, as the kernel gives it.
  void SetNorm(size_t index, double result);
  void Reduce(StatReducer& reducer);

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
  StatBuffer buffer_;
  std::vector<double> numbers_;  // for each view its mark and, if asked for, its norm
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GRAD_MARKS_H_
