// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/grad_marks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/optim/core/options_agreement.h"

namespace apogee::optim {

GradMarks::GradMarks(std::vector<ParamView*> views, bool norms, NormKind kind,
                     std::optional<uint64_t> digest)
    : views_(std::move(views)),
      kind_(kind),
      stride_(norms ? 2 : 1),
      slots_(digest.has_value() ? kNumDigestSlots : 0),
      buffer_(DType::kF64, views_.at(0)->value().context()),
      numbers_(views_.size() * stride_) {
  const auto add = [this](const ParamView& view, int64_t count) {
    section() == StatSection::kSums ? buffer_.AddSums(view, count) : buffer_.AddMaxima(view, count);
  };
  for (const ParamView* view : views_) add(*view, static_cast<int64_t>(stride_));
  if (digest.has_value()) {
    // AddendStatReducer reduces only the numbers of views with unreduced gradients, so the digest
    // goes with one of those.
    const auto partial = std::ranges::find_if(views_, &ParamView::partial_grad);
    add(partial == views_.end() ? *views_[0] : **partial, slots_);
    numbers_.resize(numbers_.size() + static_cast<size_t>(slots_));
    PutDigest(*digest, kind_ == NormKind::kMax, at(views_.size()));
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

void GradMarks::ReduceOnDevice(StatReducer& reducer) {
  const int64_t begin = static_cast<int64_t>(views_.size() * stride_);
  for (int64_t slot = 0; slot < slots_; ++slot) {
    const double number = numbers_[static_cast<size_t>(begin + slot)];
    StatSlice(buffer_, section(), begin + slot, 1).Fill(number);
  }
  reducer.Reduce(buffer_);
}

void GradMarks::SetPresent(size_t index) { at(index)[0] = kGradPresent; }

void GradMarks::SetNorm(size_t index, double result) {
  at(index)[0] = std::isfinite(result) ? kGradPresent : kGradNonFinite;
  at(index)[1] = kind_ == NormKind::kMax ? result : result / views_[index]->num_replicas();
}

bool GradMarks::DigestsAgree() const {
  return slots_ == 0 || optim::DigestsAgree(kind_ == NormKind::kMax, at(views_.size()));
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
