#include "apogee/optim/galore.h"

#include <cstring>

#include "apogee/optim/stat_values.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

using internal::Concat;

constexpr const char* kOne = "projector";
constexpr const char* kLeft = "projector_left";
constexpr const char* kRight = "projector_right";

// This rank's elements in their places of the whole matrix, zeros elsewhere.
Tensor Scatter(const ParamView& view, const Tensor& local, DType dtype) {
  const Shape& shape = view.layout().logical_shape();
  Tensor whole = Tensor::Zeros({shape.numel()}, dtype, local.context(), MemoryCategory::kWorkspace);
  const Tensor flat = local.View({local.numel()});
  int64_t at = 0;
  for (const comm::Segment& segment : view.layout().segments()) {
    whole.Slice(0, segment.begin, segment.length).CopyFrom(flat.Slice(0, at, segment.length));
    at += segment.length;
  }
  return whole.View(shape);
}

Tensor WholeGrad(const ParamView& view, const Tensor& grad) {
  const DType dtype = view.compute_dtype();
  if (view.sharded()) return Scatter(view, grad, dtype);
  return grad.dtype() == dtype ? grad : grad.To(dtype, MemoryCategory::kWorkspace);
}

Tensor Project(const Tensor& grad, const Tensor& left, const Tensor& right) {
  Tensor x = grad;
  if (right.defined()) x = ops::MatMul(x, right, {.b_trans = true});
  if (left.defined()) x = ops::MatMul(left, x, {.a_trans = true});
  return x;
}

Tensor Back(const Tensor& update, const Tensor& left, const Tensor& right) {
  Tensor x = update;
  if (right.defined()) x = ops::MatMul(x, right);
  if (left.defined()) x = ops::MatMul(left, x);
  return x;
}

// The first `count` unit vectors as rows, [count, n], or as columns.
Tensor UnitVectors(int64_t count, int64_t n, bool columns, DType dtype, const ContextPtr& context) {
  std::vector<double> values(static_cast<size_t>(count * n), 0);
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(columns ? i * count + i : i * n + i)] = 1;
  const Shape shape = columns ? Shape{n, count} : Shape{count, n};
  return Tensor::FromVector(values, shape, context, dtype);
}

}  // namespace

Tensor GaLoreRotation::Apply(const Tensor& x, bool squared) const {
  const auto entries = [squared](const Tensor& m) { return squared ? ops::Mul(m, m) : m; };
  Tensor y = x;
  if (right.defined()) y = ops::MatMul(y, entries(right));
  if (left.defined()) y = ops::MatMul(entries(left), y);
  return y;
}

bool GaLoreProjector::Projects(const GaLoreSettings& settings, const ParamView& view) {
  return settings.project && view.layout().logical_shape().rank() == 2;
}

GaLorePlan GaLoreProjector::PlanOf(const GaLoreSettings& settings, const ParamView& view) {
  const Shape& shape = view.layout().logical_shape();
  const std::string& type = settings.proj_type;
  GaLorePlan plan{shape[0], shape[1], std::min({settings.rank, shape[0], shape[1]}), false, false};
  const bool tall = plan.rows >= plan.cols;
  plan.right = type == "right" || type == "full" || type == (tall ? "std" : "reverse_std");
  plan.left = type == "left" || type == "full" || type == (tall ? "reverse_std" : "std");
  return plan;
}

void GaLoreProjector::AppendBasisSpecs(const GaLoreSettings& settings, const ParamView& view,
                                       std::vector<StateSpec>& specs) {
  const GaLorePlan plan = PlanOf(settings, view);
  const bool both = plan.left && plan.right;
  if (plan.left) specs.push_back({both ? kLeft : kOne, StateKind::kBasis, {plan.rows, plan.rank}});
  if (plan.right)
    specs.push_back({both ? kRight : kOne, StateKind::kBasis, {plan.rank, plan.cols}});
}

void GaLoreProjector::Declare(int phase, const GaLoreSettings& settings, const ActiveParam& param,
                              StatBuffer& buffer) const {
  const ParamView& view = *param.view;
  if (!view.sharded()) return;
  if (phase == kGradientPhase && view.step() % settings.update_proj_gap == 0) {
    buffer.AddSums(view, view.layout().logical_shape().numel());
  } else if (phase == kProjectionPhase) {
    buffer.AddSums(view, PlanOf(settings, view).low_rank().numel());
  }
}

void GaLoreProjector::Compute(int phase, const GaLoreSettings& settings, const ActiveParam& param,
                              std::span<const StatBuffer> totals, StatBuffer& buffer) {
  const ParamView& view = *param.view;
  const StatBuffer::Entry* entry = FindEntry(buffer.sum_entries(), &view);
  const bool refreshes = view.step() % settings.update_proj_gap == 0;
  if (phase == kGradientPhase && entry == nullptr) return;
  Tensor grad = WholeGrad(view, param.grad);  // of a shard: this rank's part, zeros elsewhere
  const auto put = [&](const Tensor& x) {
    const Tensor to = StatSlice(buffer, StatSection::kSums, entry->offset, entry->count);
    const double share = 1.0 / view.layout().num_replicas();
    const Tensor flat = x.View({x.numel()});
    to.CopyFrom(share == 1 ? flat
                           : ops::Mul(flat, Tensor::Full({}, x.dtype(), share, x.context())));
  };
  if (phase == kGradientPhase) return put(grad);
  if (phase != kProjectionPhase) return;

  Pending& pending = pending_[&view];
  pending = {};
  if (refreshes) {
    Tensor whole = grad;
    if (view.sharded()) {
      const StatBuffer::Entry* sum = FindEntry(totals[kGradientPhase].sum_entries(), &view);
      whole = StatSlice(totals[kGradientPhase], StatSection::kSums, sum->offset, sum->count)
                  .View(grad.shape())
                  .To(grad.dtype(), MemoryCategory::kWorkspace);
    }
    pending.basis = MakeBasis(settings, view, whole);
  }
  const GaLorePlan plan = PlanOf(settings, view);
  const bool is_new = pending.basis.left.defined() || pending.basis.right.defined();
  const Basis basis = is_new ? pending.basis : StoredBasis(plan, view);
  const Tensor low_rank = Project(grad, basis.left, basis.right);
  view.sharded() ? put(low_rank) : void(pending.low_rank = low_rank);
}

GaLoreProjector::Basis GaLoreProjector::StoredBasis(const GaLorePlan& plan, const ParamView& view) {
  const bool both = plan.left && plan.right;
  Basis basis;
  if (plan.left) basis.left = view.state(both ? kLeft : kOne);
  if (plan.right) basis.right = view.state(both ? kRight : kOne);
  return basis;
}

// Undefined where the old basis stays.
GaLoreProjector::Basis GaLoreProjector::MakeBasis(const GaLoreSettings& settings,
                                                  const ParamView& view, const Tensor& grad) const {
  const GaLorePlan plan = PlanOf(settings, view);
  const BasisMethod method =
      settings.svd == "exact" ? BasisMethod::kExact : BasisMethod::kRandomized;
  const BasisResult found = LeadingBasis(
      grad, {.rank = plan.rank, .method = method, .left = plan.left, .right = plan.right});
  Basis basis{found.left, found.right};
  if (!found.ok) {
    if (view.step() > 0) return {};
    const DType dtype = grad.dtype();
    if (plan.left) basis.left = UnitVectors(plan.rank, plan.rows, true, dtype, grad.context());
    if (plan.right) basis.right = UnitVectors(plan.rank, plan.cols, false, dtype, grad.context());
  }
  const bool both = plan.left && plan.right;
  if (hook_ && plan.left) hook_(view, {basis.left, false, both});
  if (hook_ && plan.right) hook_(view, {basis.right, true, both});
  return basis;
}

GaLoreProjector::Projected GaLoreProjector::Take(const GaLoreSettings& settings,
                                                 const ActiveParam& param,
                                                 std::span<const StatBuffer> totals) {
  const ParamView& view = *param.view;
  const GaLorePlan plan = PlanOf(settings, view);
  Pending pending = std::move(pending_.at(&view));
  pending_.erase(&view);
  Projected result{.grad = pending.low_rank, .refreshed = false, .rotation = {}};
  if (view.sharded()) {
    const StatBuffer::Entry* entry = FindEntry(totals[kProjectionPhase].sum_entries(), &view);
    result.grad =
        StatSlice(totals[kProjectionPhase], StatSection::kSums, entry->offset, entry->count)
            .View(plan.low_rank())
            .To(view.compute_dtype(), MemoryCategory::kWorkspace);
  }
  const Basis stored = StoredBasis(plan, view);
  const auto replace = [](const Tensor& from, const Tensor& to) {
    if (to.defined() && from.defined()) to.CopyFrom(from);
  };
  if (!pending.basis.left.defined() && !pending.basis.right.defined()) return result;
  if (view.step() > 1) {  // there is an old basis; steps have been advanced
    result.refreshed = true;
    if (settings.on_refresh == "rotate") {
      if (plan.left) {
        result.rotation.left = ops::MatMul(pending.basis.left, stored.left, {.a_trans = true});
      }
      if (plan.right) {
        result.rotation.right = ops::MatMul(stored.right, pending.basis.right, {.b_trans = true});
      }
    }
  }
  replace(pending.basis.left, stored.left);
  replace(pending.basis.right, stored.right);
  return result;
}

void GaLoreProjector::ApplyBack(const GaLoreSettings& settings, const ActiveParam& param,
                                const Tensor& update, double decay) {
  ParamView& view = *param.view;
  const Basis basis = StoredBasis(PlanOf(settings, view), view);
  const Tensor back = Back(update, basis.left, basis.right);
  const DType dtype = back.dtype();
  const UpdateChunk local = MakeUpdateChunk<UpdateChunk>(param);
  std::vector<UpdateChunk> chunks;
  int64_t at = 0;
  for (const comm::Segment& segment : view.layout().segments()) {
    UpdateChunk chunk = local;
    chunk.n = segment.length;
    chunk.weight = static_cast<char*>(local.weight) + at * DTypeSize(dtype);
    chunk.grad = static_cast<const char*>(back.raw()) + segment.begin * DTypeSize(dtype);
    chunk.grad_dtype = dtype;
    if (local.working != nullptr) {
      chunk.working = static_cast<char*>(local.working) + at * DTypeSize(local.working_dtype);
    }
    chunks.push_back(chunk);
    at += segment.length;
  }
  const DeviceContext& context = *param.grad.context();
  OptimKernelsFor(context).low_rank_update(context, {dtype, settings.scale, decay, chunks});
}

void CheckGaLore(const GaLoreSettings& s, OptionProblems& problems) {
  const auto one_of = [&](const char* name, const std::string& value,
                          std::initializer_list<const char*> known) {
    std::string text;
    for (const char* k : known) {
      if (value == k) return;
      text += std::string(text.empty() ? "" : ", ") + k;
    }
    problems.Add(Concat(name, " is \"", value, "\", must be one of ", text));
  };
  if (s.rank < 1) problems.Add(Concat("rank is ", s.rank, ", must be at least 1"));
  if (s.update_proj_gap < 1) {
    problems.Add(Concat("update_proj_gap is ", s.update_proj_gap, ", must be at least 1"));
  }
  problems.AtLeastZero("scale", s.scale);
  one_of("proj_type", s.proj_type, {"std", "reverse_std", "left", "right", "full"});
  one_of("svd", s.svd, {"randomized", "exact"});
  one_of("on_refresh", s.on_refresh, {"keep", "reset", "rotate"});
}

void CheckGaLoreRanks(const GaLoreSettings& s, const std::vector<autograd::ParameterPtr>& params,
                      std::vector<std::string>& problems) {
  if (!s.project || s.clamp_rank) return;
  for (const autograd::ParameterPtr& p : params) {
    if (p == nullptr || p->shape().rank() != 2) continue;
    const int64_t most = std::min(p->shape()[0], p->shape()[1]);
    if (s.rank <= most) continue;
    problems.push_back(Concat("rank ", s.rank, " is above ", most, ", the smaller side of \"",
                              p->name(), "\" ", p->shape(), "; lower it or set clamp_rank"));
  }
}

}  // namespace apogee::optim
