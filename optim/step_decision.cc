// The decision phase of Optimizer::step.
#include <cmath>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {
namespace {

// What the ranks tell each other about one gradient: the largest counts.
constexpr double kAbsent = 0;
constexpr double kPresent = 1;
constexpr double kNonFinite = 2;

}  // namespace

StepDecision Optimizer::Decide(std::vector<ActiveParam>& active) {
  std::vector<int> candidates;  // trainable views
  std::vector<int> groups;
  for (int group = 0, first = 0; group < num_groups();
       first += group_sizes_[static_cast<size_t>(group++)]) {
    for (int i = first; i < first + group_sizes_[static_cast<size_t>(group)]; ++i) {
      if (!views_[static_cast<size_t>(i)].trainable()) continue;
      candidates.push_back(i);
      groups.push_back(group);
    }
  }
  StepDecision decision;
  decision.inv_loss_scale = 1 / step_options_.loss_scale;
  if (candidates.empty()) return decision;

  const bool check_finite = step_options_.nonfinite != NonFinitePolicy::kProceed;
  const bool need_norm = check_finite || step_options_.max_norm > 0;
  const bool sums = step_options_.norm_kind != NormKind::kMax;
  const ContextPtr context = views_[static_cast<size_t>(candidates[0])].value().context();
  StatBuffer buffer(DType::kF64, context);
  for (const int i : candidates) {
    const ParamView& view = views_[static_cast<size_t>(i)];
    buffer.AddMaxima(view, 1);
    if (need_norm) sums ? buffer.AddSums(view, 1) : buffer.AddMaxima(view, 1);
  }
  buffer.Allocate();
  double* marks = buffer.maxima<double>(0);
  double* norms = sums ? buffer.sums<double>(0) : marks + 1;
  const size_t mark_stride = need_norm && !sums ? 2 : 1;
  const size_t norm_stride = sums ? 1 : 2;

  std::vector<Tensor> grads(candidates.size());
  std::vector<NormChunk> chunks;
  std::vector<size_t> owners;
  for (size_t c = 0; c < candidates.size(); ++c) {
    ParamView& view = views_[static_cast<size_t>(candidates[c])];
    APOGEE_CHECK(view.value().device() == context->device(), "optimizer ", name_, ": parameter \"",
                 view.name(), "\" is on ", view.value().device().ToString(), ", others on ",
                 context->device().ToString(), "; make one optimizer per device");
    if (!view.has_grad()) continue;
    grads[c] = view.grad();
    marks[c * mark_stride] = kPresent;
    chunks.push_back({grads[c].raw(), grads[c].dtype(), view.layout().local_numel(), 0});
    owners.push_back(c);
  }
  if (need_norm) {
    OptimKernelsFor(*context).grad_norm(*context, {step_options_.norm_kind, chunks});
    for (size_t k = 0; k < chunks.size(); ++k) {
      const size_t c = owners[k];
      const ParamView& view = views_[static_cast<size_t>(candidates[c])];
      const double result = chunks[k].result;
      if (!std::isfinite(result)) {
        marks[c * mark_stride] = kNonFinite;
        if (report_.nonfinite_parameter.empty()) report_.nonfinite_parameter = view.name();
      }
      norms[c * norm_stride] = sums ? result / view.layout().num_replicas() : result;
    }
  }
  reducer_->Reduce(buffer);

  bool finite = true;
  double total = 0;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const double mark = marks[c * mark_stride];
    if (mark == kAbsent && !AbsentIsZero(groups[c])) continue;
    ParamView& view = views_[static_cast<size_t>(candidates[c])];
    // Absent here but present on another rank counts as zero.
    if (!grads[c].defined()) {
      grads[c] = Tensor::Zeros(view.value().shape(), view.compute_dtype(), view.value().context(),
                               MemoryCategory::kGradient);
    }
    active.push_back({&view, groups[c], grads[c]});
    finite = finite && mark != kNonFinite;
    if (!need_norm) continue;
    const double norm = norms[c * norm_stride];
    total = sums ? total + norm : (norm > total || norm != norm ? norm : total);
  }
  if (need_norm) {
    DecideFrom(finite, step_options_.norm_kind == NormKind::kL2 ? std::sqrt(total) : total,
               decision);
  }
  return decision;
}

void Optimizer::DecideFrom(bool finite, double norm, StepDecision& decision) const {
  decision.grad_norm = norm * decision.inv_loss_scale;
  decision.skip = step_options_.nonfinite != NonFinitePolicy::kProceed && !finite;
  if (step_options_.max_norm > 0 && !decision.skip) {
    // NaN stays NaN: under kProceed it must reach the weights, as it does without clipping.
    const double factor = step_options_.max_norm / (decision.grad_norm + 1e-6);
    decision.clip_factor = factor > 1 ? 1 : factor;
  }
}

}  // namespace apogee::optim
