// SPDX-License-Identifier: Apache-2.0

// The phases of a projected parameter; see galore.h.
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/lowrank/galore.h"
#include "apogee/optim/lowrank/low_rank_basis.h"
#include "apogee/optim/lowrank/low_rank_products.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

constexpr const char* kOne = "projector";
constexpr const char* kLeft = "projector_left";
constexpr const char* kRight = "projector_right";

// Whether other ranks hold parts of the gradient.
bool IsShared(const ParamView& view) { return view.sharded() || view.partial_grad(); }

const char* LeftName(const GaLorePlan& plan) { return plan.right ? kLeft : kOne; }
const char* RightName(const GaLorePlan& plan) { return plan.left ? kRight : kOne; }

int64_t LeftNumel(const GaLorePlan& plan) { return plan.left ? plan.rows * plan.rank : 0; }
int64_t RightNumel(const GaLorePlan& plan) { return plan.right ? plan.cols * plan.rank : 0; }

LowRankBasis StoredBasis(const GaLorePlan& plan, const ParamView& view) {
  LowRankBasis basis;
  if (plan.left) basis.left = view.state(LeftName(plan));
  if (plan.right) basis.right = view.state(RightName(plan));
  return basis;
}

Tensor LowRankTotals(const GaLorePlan& plan, const StatBuffer& totals, const ParamView& view) {
  return TotalsOf(totals, view).View(plan.low_rank());
}

// The basis that the owner sent in `numbers` (ComputeBasis); undefined if the old basis stays.
LowRankBasis SentBasis(const GaLorePlan& plan, const ParamView& view, const Tensor& numbers) {
  if (!numbers.defined()) return {};
  const int64_t left = LeftNumel(plan), right = RightNumel(plan);
  const bool dry = numbers.context()->is_dry();  // every basis is sent
  const double senders = dry ? 1 : numbers.Slice(0, left + right, 1).Item();
  APOGEE_CHECK(senders == 1 || (senders == 0 && view.step() > 0), "parameter \"", view.name(),
               "\": ", senders,
               " ranks computed its basis; exactly one rank must own it, see AssignOwners");
  if (senders == 0) return {};
  LowRankBasis basis;
  if (left > 0) basis.left = numbers.Slice(0, 0, left).View({plan.rows, plan.rank});
  if (right > 0) basis.right = numbers.Slice(0, left, right).View({plan.rank, plan.cols});
  return basis;
}

GaLoreRotation RotationOf(const LowRankBasis& from, const LowRankBasis& to) {
  GaLoreRotation rotation;
  if (to.left.defined()) rotation.left = ops::MatMul(to.left, from.left, {.a_trans = true});
  if (to.right.defined()) rotation.right = ops::MatMul(from.right, to.right, {.b_trans = true});
  return rotation;
}

// The first `count` unit vectors as rows, [count, n], or as columns.
Tensor UnitVectors(int64_t count, int64_t n, bool columns, DType dtype, const ContextPtr& context) {
  std::vector<double> values(static_cast<size_t>(count * n), 0);
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(columns ? i * count + i : i * n + i)] = 1;
  const Shape shape = columns ? Shape{n, count} : Shape{count, n};
  return Tensor::FromVector(values, shape, context, dtype);
}

// w += scale * back(update), with `args` for everything but the chunks.
void ApplyBack(const ActiveParam& param, const LowRankBasis& basis, const Tensor& update,
               LowRankArgs args) {
  const DType dtype = update.dtype();
  const UpdateChunk whole = MakeUpdateChunk<UpdateChunk>(param);
  const DeviceContext& context = *param.grad.context();
  ForEachBackPart(param.view->layout(), update, basis,
                  [&](const Segment& segment, int64_t local, const Tensor& values) {
                    UpdateChunk chunk = whole;
                    chunk.n = segment.length;
                    chunk.weight = static_cast<char*>(whole.weight) + local * DTypeSize(dtype);
                    chunk.grad = values.raw();
                    chunk.grad_dtype = dtype;
                    if (whole.working != nullptr) {
                      chunk.working = static_cast<char*>(whole.working) +
                                      local * DTypeSize(whole.working_dtype);
                    }
                    args.chunks = {&chunk, 1};
                    OptimKernelsFor(context).low_rank_update(context, args);
                  });
}

}  // namespace

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

int64_t GaLoreProjector::LowRankNumel(const GaLoreSettings& settings, const ParamView& view) {
  return Projects(settings, view) ? PlanOf(settings, view).low_rank().numel() : 0;
}

bool GaLoreProjector::RefreshesNext(const GaLoreSettings& settings, const ParamView& view,
                                    bool spans_ranks) {
  // A gradient that is absent here may be present on another rank.
  return Projects(settings, view) && view.trainable() && (view.has_grad() || spans_ranks) &&
         view.step() % settings.update_proj_gap == 0;
}

void GaLoreProjector::AppendBasisSpecs(const GaLoreSettings& settings, const ParamView& view,
                                       std::vector<StateSpec>& specs) {
  const GaLorePlan plan = PlanOf(settings, view);
  if (plan.left) specs.push_back({LeftName(plan), StateKind::kBasis, {plan.rows, plan.rank}});
  if (plan.right) specs.push_back({RightName(plan), StateKind::kBasis, {plan.rank, plan.cols}});
}

void GaLoreProjector::Declare(int phase, const GaLoreSettings& settings, const ActiveParam& param,
                              StatBuffer& buffer) const {
  const ParamView& view = *param.view;
  if (!IsShared(view)) return;
  const GaLorePlan plan = PlanOf(settings, view);
  const bool refreshes = view.step() % settings.update_proj_gap == 0;
  if (phase == kGradientPhase && refreshes) {
    buffer.AddSums(view, plan.rows * plan.cols);
  } else if (phase == kBasisPhase && refreshes) {
    buffer.AddFromOwner(view, LeftNumel(plan) + RightNumel(plan) + 1);
  } else if (phase == kProjectionPhase) {
    buffer.AddSums(view, plan.low_rank().numel());
  } else if (phase == kDirectionPhase && view.sharded()) {
    buffer.AddFromOwner(view, plan.low_rank().numel());
  }
}

void GaLoreProjector::Compute(int phase, const GaLoreSettings& settings, const ActiveParam& param,
                              const RuleStep& step, StatBuffer& buffer) {
  const ParamView& view = *param.view;
  if (!IsShared(view)) return;
  const StatBuffer::Entry* entry = FindEntry(buffer.sum_entries(), &view);
  if (entry == nullptr) return;
  const GaLorePlan plan = PlanOf(settings, view);
  const Tensor to = StatSlice(buffer, StatSection::kSums, entry->offset, entry->count);
  if (phase == kGradientPhase) {
    AddOwn(view.layout(), param.grad, to);
  } else if (phase == kBasisPhase) {
    if (view.owned()) ComputeBasis(settings, param, step.totals, to);
  } else if (phase == kProjectionPhase) {
    const LowRankBasis sent = SentBasis(plan, view, TotalsOf(step.totals[kBasisPhase], view));
    const LowRankBasis basis = sent.defined() ? sent : StoredBasis(plan, view);
    const Tensor part = ProjectPart(view.layout(), param.grad, basis, plan.low_rank());
    ops::Accumulate(to, part);
  } else if (view.owned()) {
    const Tensor update = ComputeDirection(settings, param, step);
    to.CopyFrom(update.View({update.numel()}));
  }
}

// Returns the new basis; undefined if the old one stays. `first`: there is no old basis.
LowRankBasis GaLoreProjector::MakeBasis(const GaLoreSettings& settings, const ParamView& view,
                                        const Tensor& grad, bool first) const {
  const GaLorePlan plan = PlanOf(settings, view);
  const BasisMethod method =
      settings.svd == "exact" ? BasisMethod::kExact : BasisMethod::kRandomized;
  const BasisResult found = LeadingBasis(
      grad, {.rank = plan.rank, .method = method, .left = plan.left, .right = plan.right});
  LowRankBasis basis{found.left, found.right};
  if (!found.ok) {
    if (!first) return {};
    const DType dtype = grad.dtype();
    if (plan.left) basis.left = UnitVectors(plan.rank, plan.rows, true, dtype, grad.context());
    if (plan.right) basis.right = UnitVectors(plan.rank, plan.cols, false, dtype, grad.context());
  }
  const bool both = plan.left && plan.right;
  if (hook_ && plan.left) hook_(view, {basis.left, false, both});
  if (hook_ && plan.right) hook_(view, {basis.right, true, both});
  return basis;
}

// Writes the vectors of the new basis, then a 1. Writes nothing (zeros) if the old basis stays.
void GaLoreProjector::ComputeBasis(const GaLoreSettings& settings, const ActiveParam& param,
                                   std::span<const StatBuffer> totals, const Tensor& to) const {
  const ParamView& view = *param.view;
  const Tensor whole = TotalsOf(totals[kGradientPhase], view).View(view.layout().logical_shape());
  const LowRankBasis basis = MakeBasis(settings, view, whole, /*first=*/view.step() == 0);
  if (!basis.defined()) return;
  int64_t at = 0;
  for (const Tensor& side : {basis.left, basis.right}) {
    if (!side.defined()) continue;
    to.Slice(0, at, side.numel()).CopyFrom(side.View({side.numel()}));
    at += side.numel();
  }
  to.Slice(0, at, 1).Fill(1);
}

GaLoreProjector::Projected GaLoreProjector::Assemble(const GaLoreSettings& settings,
                                                     const LowRankBasis& old,
                                                     const LowRankBasis& fresh,
                                                     const Tensor& low_rank, int64_t earlier) {
  Projected projected{
      .grad = low_rank, .refreshed = fresh.defined() && earlier > 0, .rotation = {}};
  if (projected.refreshed && settings.on_refresh == "rotate") {
    projected.rotation = RotationOf(old, fresh);
  }
  return projected;
}

Tensor GaLoreProjector::ComputeDirection(const GaLoreSettings& settings, const ActiveParam& param,
                                         const RuleStep& step) {
  const std::span<const StatBuffer> totals = step.totals;
  const ParamView& view = *param.view;
  const GaLorePlan plan = PlanOf(settings, view);
  const LowRankBasis fresh = SentBasis(plan, view, TotalsOf(totals[kBasisPhase], view));
  const Tensor low_rank = LowRankTotals(plan, totals[kProjectionPhase], view);
  const Projected projected =
      Assemble(settings, StoredBasis(plan, view), fresh, low_rank, view.step());
  // The all-reduce of this phase may still fail, and then no state may have changed.
  std::vector<NamedState> copies;
  for (const NamedState& state : view.states()) {
    if (state.kind == StateKind::kBasis) continue;
    copies.push_back({state.name, state.kind, state.value.Clone(MemoryCategory::kWorkspace)});
  }
  ParamView moving(view.name(), low_rank, Layout(plan.low_rank()));
  moving.ReplaceStates(copies);
  moving.set_step(view.step() + 1);
  const Tensor update = LowRankUpdate(param, moving, projected, step);
  moved_[&view] = std::move(copies);
  return update;
}

void GaLoreProjector::UpdateProjected(const GaLoreSettings& settings, const ActiveParam& param,
                                      const RuleStep& step, DecayKind kind, double decay,
                                      const SizedRate& decay_rate) {
  const std::span<const StatBuffer> totals = step.totals;
  ParamView& view = *param.view;
  const GaLorePlan plan = PlanOf(settings, view);
  const LowRankBasis basis = StoredBasis(plan, view);
  const int64_t earlier = view.step() - 1;
  LowRankBasis fresh;
  if (IsShared(view)) {
    fresh = SentBasis(plan, view, TotalsOf(totals[kBasisPhase], view));
  } else if (earlier % settings.update_proj_gap == 0) {
    const DType dtype = view.compute_dtype();
    const Tensor grad =
        param.grad.dtype() == dtype ? param.grad : param.grad.To(dtype, MemoryCategory::kWorkspace);
    fresh = MakeBasis(settings, view, grad, /*first=*/earlier == 0);
  }
  Tensor update;
  if (view.sharded()) {
    update = LowRankTotals(plan, totals[kDirectionPhase], view);
    if (view.owned()) {
      for (const NamedState& state : moved_.at(&view)) view.state(state.name).CopyFrom(state.value);
      moved_.erase(&view);
    }
  } else {
    const Tensor low_rank = view.partial_grad()
                                ? LowRankTotals(plan, totals[kProjectionPhase], view)
                                : ProjectPart(view.layout(), param.grad,
                                              fresh.defined() ? fresh : basis, plan.low_rank());
    update = LowRankUpdate(param, view, Assemble(settings, basis, fresh, low_rank, earlier), step);
  }
  if (fresh.left.defined()) basis.left.CopyFrom(fresh.left);
  if (fresh.right.defined()) basis.right.CopyFrom(fresh.right);
  ApplyBack(param, basis, update,
            {.dtype = update.dtype(),
             .decay_kind = kind,
             .scale = settings.scale,
             .decay = decay,
             .decay_rate = decay_rate,
             .gate = step.decision.gate,
             .chunks = {}});
}

}  // namespace apogee::optim
