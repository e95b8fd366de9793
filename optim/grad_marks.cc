#include "apogee/optim/grad_marks.h"

#include <cmath>
#include <utility>

namespace apogee::optim {
namespace {

// Marks are added, or their maximum is taken, together with the norms.
constexpr double kPresent = 1;
constexpr double kNonFinite = 1 << 20;  // more than any number of ranks that have it

}  // namespace

GradMarks::GradMarks(std::vector<ParamView*> views, bool norms, NormKind kind)
    : views_(std::move(views)),
      kind_(kind),
      stride_(norms ? 2 : 1),
      buffer_(DType::kF64, views_.at(0)->value().context()),
      numbers_(views_.size() * stride_) {
  for (const ParamView* view : views_) {
    section() == StatSection::kSums ? buffer_.AddSums(*view, static_cast<int64_t>(stride_))
                                    : buffer_.AddMaxima(*view, static_cast<int64_t>(stride_));
  }
  buffer_.Allocate();
}

void GradMarks::Reduce(StatReducer& reducer) {
  WriteStats(buffer_, section(), numbers_);
  reducer.Reduce(buffer_);
  numbers_ = ReadStats(buffer_, section());
}

void GradMarks::SetPresent(size_t index) { at(index)[0] = kPresent; }

void GradMarks::SetNorm(size_t index, double result) {
  at(index)[0] = std::isfinite(result) ? kPresent : kNonFinite;
  at(index)[1] = kind_ == NormKind::kMax ? result : result / views_[index]->layout().num_replicas();
}

bool GradMarks::present(size_t index) const { return at(index)[0] != 0; }

const ParamView* GradMarks::FirstNonFinite() const {
  for (size_t i = 0; i < views_.size(); ++i) {
    if (at(i)[0] >= kNonFinite) return views_[i];
  }
  return nullptr;
}

double GradMarks::TotalNorm() const {
  double total = 0;
  for (size_t i = 0; i < views_.size(); ++i) {
    const double norm = at(i)[1];
    total = kind_ != NormKind::kMax ? total + norm : (norm > total || norm != norm ? norm : total);
  }
  return kind_ == NormKind::kL2 ? std::sqrt(total) : total;
}

}  // namespace apogee::optim
