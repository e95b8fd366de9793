// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid/partial_gradients.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/core/error.h"

namespace apogee {
namespace {

void SetGrad(optim::ParamView& view, const Tensor& grad) {
  view.is_shard() ? view.set_grad(grad) : view.parameter()->set_grad(grad);
}

bool IsZero(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return value == 0; });
}

// Hash of the elements of which this rank has a gradient; 0 if all are zero or absent. Half of its
// bits, which a double holds exactly. Sets `finite` to false if an element is not finite.
double HashOf(const optim::ParamView& view, bool& finite) {
  if (!view.has_grad()) return 0;
  const std::vector<double> values = view.grad().ToVector<double>();
  if (IsZero(values)) return 0;
  finite = finite && std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  const auto bytes = static_cast<size_t>(view.layout().local_numel()) * sizeof(double);
  return static_cast<double>(XXH3_64bits(values.data(), bytes) >> 32);
}

}  // namespace

PartialGradients::PartialGradients(std::string plugin, std::vector<optim::ParamView*> views,
                                   comm::GroupPtr group)
    : plugin_(std::move(plugin)), views_(std::move(views)), group_(std::move(group)) {}

void PartialGradients::CheckDiffer() {
  std::vector<double> hashes;
  bool finite = true;
  for (const optim::ParamView* view : views_) hashes.push_back(HashOf(*view, finite));
  for (size_t i = 0; i < views_.size(); ++i) hashes.push_back(-hashes[i]);
  hashes.push_back(finite ? 0 : 1);
  const auto count = static_cast<int64_t>(hashes.size());
  const Tensor ends =
      Tensor::FromVector<double>(hashes, {count}, views_[0]->parameter()->context());
  group_->AllReduce(ends, comm::ReduceOp::kMax);
  hashes = ends.ToVector<double>();
  // Overflowed gradients look equal; a later step decides.
  if (hashes.back() > 0) return;
  checked_ = !IsZero(hashes);
  for (size_t i = 0; i < views_.size(); ++i) {
    const bool same = hashes[i] != 0 && hashes[i] == -hashes[views_.size() + i];
    APOGEE_CHECK(!same, plugin_, ": parameter \"", views_[i]->name(),
                 "\" is used by each rank of the tp group for its own tokens, but its gradient is "
                 "the same on all of them: use its value without nn::parallel::CopyToGroup, and "
                 "before the layer that makes the logits");
  }
}

void PartialGradients::Sum() {
  Restore();  // of a step that threw
  if (views_.empty()) return;
  if (!checked_) CheckDiffer();
  const auto num_views = static_cast<int64_t>(views_.size());
  int64_t numel = 0;
  DType dtype = DType::kF32;
  for (const optim::ParamView* view : views_) {
    numel += view->layout().local_numel();
    if (view->compute_dtype() == DType::kF64) dtype = DType::kF64;
  }
  const Tensor packed = Tensor::Zeros({numel + num_views}, dtype, views_[0]->parameter()->context(),
                                      MemoryCategory::kCommunication);
  const auto part_of = [](const Tensor& grad, int64_t count) {
    return grad.View({grad.numel()}).Slice(0, 0, count);
  };
  int64_t begin = 0;
  for (int64_t i = 0; i < num_views; ++i) {
    const optim::ParamView& view = *views_[static_cast<size_t>(i)];
    const int64_t count = view.layout().local_numel();
    if (view.has_grad()) {
      packed.Slice(0, begin, count).CopyFrom(part_of(view.grad(), count));
      packed.Slice(0, numel + i, 1).Fill(1);
    }
    begin += count;
  }
  group_->AllReduce(packed);
  const std::vector<double> present = packed.Slice(0, numel, num_views).ToVector<double>();
  begin = 0;
  for (int64_t i = 0; i < num_views; ++i) {
    optim::ParamView& view = *views_[static_cast<size_t>(i)];
    const int64_t count = view.layout().local_numel();
    if (present[static_cast<size_t>(i)] > 0) {
      const Tensor addend = view.has_grad() ? view.grad() : Tensor();
      const DType grad_dtype = addend.defined() ? addend.dtype() : view.parameter()->grad_dtype();
      const Tensor sum = Tensor::Zeros(addend.defined() ? addend.shape() : view.shape(), grad_dtype,
                                       packed.context(), MemoryCategory::kGradient);
      part_of(sum, count).CopyFrom(packed.Slice(0, begin, count));
      SetGrad(view, sum);
      summed_.push_back({&view, addend, sum});
    }
    begin += count;
  }
}

void PartialGradients::Restore() {
  for (const Summed& summed : std::exchange(summed_, {})) {
    const bool still = summed.view->has_grad() && summed.view->grad().raw() == summed.sum.raw();
    if (still) SetGrad(*summed.view, summed.addend);
  }
}

}  // namespace apogee
