#include "apogee/optim/grad_marks.h"

#include <cmath>
#include <utility>

namespace apogee::optim {

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

void GradMarks::Reduce(StatReducer& reducer, bool fetch) {
  WriteStats(buffer_, section(), numbers_);
  reducer.Reduce(buffer_);
  if (fetch) Fetch();
}

void GradMarks::MarkOnDevice(DeviceDecision& decision, std::span<const MarkChunk> chunks) {
  decision.Mark(kind_, chunks, static_cast<double*>(StatValues(buffer_, section()).raw()));
}

void GradMarks::SetPresent(size_t index) { at(index)[0] = kGradPresent; }

void GradMarks::SetNorm(size_t index, double result) {
  at(index)[0] = std::isfinite(result) ? kGradPresent : kGradNonFinite;
  at(index)[1] = kind_ == NormKind::kMax ? result : result / views_[index]->layout().num_replicas();
}

bool GradMarks::present(size_t index) const { return at(index)[0] != 0; }

const ParamView* GradMarks::FirstNonFinite() const {
  for (size_t i = 0; i < views_.size(); ++i) {
    if (at(i)[0] >= kGradNonFinite) return views_[i];
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
