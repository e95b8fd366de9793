// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore_adafactor.h"

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/factored/adafactor_step.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

static_assert(AdafactorStep::kNumPhases == 2, "one phase each for R and the direction");

// The entry of the sum of w^2. For shards it comes after the entry of the projection.
const StatBuffer::Entry& WeightEntry(const StatBuffer& buffer, const ParamView* view) {
  const std::vector<StatBuffer::Entry>& entries = buffer.sum_entries();
  auto at = entries.rbegin();
  while (at->view != view) ++at;
  return *at;
}

Tensor MeanLeading(const Tensor& x, int inner_dims) {
  return ops::SumLeading(x, inner_dims, x.dtype(), 1 / static_cast<double>(x.size(0)));
}

}  // namespace

std::vector<std::string> GaLoreAdafactorOptions::Problems() const {
  std::vector<std::string> problems = AdafactorOf(*this).Problems();
  OptionProblems more;
  CheckGaLore(GaLoreOf(*this), more);
  for (const std::string& problem : more.list()) problems.push_back(problem);
  return problems;
}

std::vector<OptionField<GaLoreAdafactorOptions>> GaLoreAdafactorOptions::Fields() {
  std::vector<OptionField<GaLoreAdafactorOptions>> fields;
  AppendAdafactorFields(fields);
  AppendGaLoreFields(fields);
  return fields;
}

GaLoreAdafactor::GaLoreAdafactor(std::vector<ParamGroup<GaLoreAdafactorOptions>> groups)
    : RelativeStepOptimizer(GaLoreAdafactorOptions::kName, CheckedGaLoreGroups(std::move(groups))),
      step_(std::make_unique<AdafactorStep>(
          [this](int group) { return AdafactorOf(options(group)); })) {}

GaLoreAdafactor::~GaLoreAdafactor() = default;

std::span<const StateSpec> GaLoreAdafactor::StatesUnder(
    const ParamView& view, const GaLoreAdafactorOptions& options) const {
  const GaLoreSettings settings = GaLoreOf(options);
  if (!Projects(settings, view)) return AdafactorStep::States(view, AdafactorOf(options));
  const Shape shape = PlanOf(settings, view).low_rank();
  std::vector<StateSpec> specs;
  if (KeepsMoments(view)) {
    specs = {{"exp_avg_sq_row", StateKind::kLowRank, {shape[0]}},
             {"exp_avg_sq_col", StateKind::kLowRank, {shape[1]}}};
  }
  if (KeepsMoments(view) && options.beta1 != 0)
    specs.push_back({"exp_avg", StateKind::kLowRank, shape});
  AppendBasisSpecs(settings, view, specs);
  return KeepSpecs(std::move(specs));
}

GaLoreAdafactor::Split GaLoreAdafactor::SplitUp(std::span<const ActiveParam> params) const {
  Split split;
  for (const ActiveParam& p : params) {
    (Projects(GaLoreOf(options(p.group)), *p.view) ? split.projected : split.plain).push_back(p);
  }
  return split;
}

// AdafactorStep needs its entries to be the first. The projection looks for the first entry of its
// parameter. The sums of w^2 are needed in every step, so they come after the projection's entry in
// kProjectionPhase, the phase in which every shard has one.
void GaLoreAdafactor::DeclareStats(int phase, std::span<const ActiveParam> params,
                                   StatBuffer& buffer) {
  const Split split = SplitUp(params);
  if (phase >= kProjectionPhase) step_->Declare(phase - kProjectionPhase, split.plain, buffer);
  for (const ActiveParam& p : split.projected) {
    Declare(phase, GaLoreOf(options(p.group)), p, buffer);
    if (phase == kProjectionPhase && options(p.group).scale_parameter) buffer.AddSums(*p.view, 1);
  }
}

void GaLoreAdafactor::ComputeStats(int phase, std::span<const ActiveParam> params,
                                   const StepDecision& decision, std::span<const StatBuffer> totals,
                                   StatBuffer& buffer) {
  const Split split = SplitUp(params);
  if (phase >= kProjectionPhase) {
    step_->Compute(phase - kProjectionPhase, split.plain, decision,
                   totals.subspan(kProjectionPhase), buffer);
  }
  for (const ActiveParam& p : split.projected) {
    Compute(phase, GaLoreOf(options(p.group)), p, decision, totals, buffer);
  }
  if (phase == kProjectionPhase) SumWeights(split.projected, buffer);
}

void GaLoreAdafactor::SumWeights(std::span<const ActiveParam> projected, StatBuffer& buffer) const {
  std::vector<ActiveParam> scaled;
  for (const ActiveParam& p : projected) {
    if (options(p.group).scale_parameter) scaled.push_back(p);
  }
  FactoredWork work;
  work.Prepare(scaled);
  const auto make_chunk = [&](const ActiveParam& param) {
    FactoredChunk chunk = work.Chunk(param, static_cast<size_t>(&param - scaled.data()));
    chunk.rows = 0;  // sums up the weights only
    chunk.columns = 0;
    const int64_t offset = WeightEntry(buffer, param.view).offset;
    chunk.sums = StatSlice(buffer, StatSection::kSums, offset, 1).raw();
    return chunk;
  };
  ForEachComputeDType<FactoredChunk>(
      scaled, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
        const DeviceContext& context = *scaled[0].grad.context();
        OptimKernelsFor(context).adafactor_square_sums(
            context, {dtype, buffer.dtype(), /*grad_scale=*/1, /*with_weights=*/true, chunks});
      });
}

// With rotate, computes the mean squares that the averages represent, row_i * col_j / mean(row),
// rotates them, and averages them again.
void GaLoreAdafactor::MoveStates(const GaLoreAdafactorOptions& o, const ParamView& view,
                                 const Projected& projected) {
  if (!projected.refreshed || o.on_refresh == "keep") return;
  const Tensor row = view.state("exp_avg_sq_row"), col = view.state("exp_avg_sq_col");
  const Tensor exp_avg = view.state("exp_avg");
  if (o.on_refresh == "reset") {
    row.Fill(0);
    col.Fill(0);
    if (exp_avg.defined()) exp_avg.Fill(0);
    return;
  }
  const Tensor share = ops::Div(row, MeanLeading(row, 0));
  const Tensor squares = projected.rotation.Apply(
      ops::MatMul(share.View({row.numel(), 1}), col.View({1, col.numel()})),
      /*squared=*/true);
  row.CopyFrom(MeanLeading(squares.Transpose(0, 1).Contiguous(), 1));
  col.CopyFrom(MeanLeading(squares, 1));
  if (exp_avg.defined()) exp_avg.CopyFrom(projected.rotation.Apply(exp_avg, /*squared=*/false));
}

SizedRate GaLoreAdafactor::Alpha(const ActiveParam& param, int64_t step,
                                 std::span<const StatBuffer> totals) const {
  const GaLoreAdafactorOptions& o = options(param.group);
  const ParamView& view = *param.view;
  SizedRate alpha{.rate = RelativeRate(AdafactorOf(o), step),
                  .weight_sum = nullptr,
                  .stat_dtype = totals[kProjectionPhase].dtype(),
                  .numel = view.layout().logical_shape().numel(),
                  .floor = o.eps[1]};
  if (o.scale_parameter) {
    const StatBuffer& buffer = totals[kProjectionPhase];
    const int64_t offset = WeightEntry(buffer, &view).offset;
    alpha.weight_sum = StatSlice(buffer, StatSection::kSums, offset, 1).raw();
  }
  return alpha;
}

Tensor GaLoreAdafactor::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                      const Projected& projected, const StepDecision& decision,
                                      std::span<const StatBuffer> totals) {
  const GaLoreAdafactorOptions& o = options(param.group);
  MoveStates(o, states, projected);
  return AdafactorLowRankStep(AdafactorOf(o), Alpha(param, states.step(), totals), states,
                              projected.grad, decision);
}

void GaLoreAdafactor::Update(int group, std::span<const ActiveParam> params,
                             const StepDecision& decision, std::span<const StatBuffer> totals) {
  const GaLoreAdafactorOptions& o = options(group);
  const Split split = SplitUp(params);
  for (const ActiveParam& p : split.projected) {
    UpdateProjected(GaLoreOf(o), p, decision, totals, DecayKind::kBefore, o.weight_decay,
                    Alpha(p, p.view->step(), totals));
  }
  if (!split.plain.empty()) {
    step_->Update(group, split.plain, decision, totals.subspan(kProjectionPhase));
  }
}

template class TypedOptimizer<GaLoreAdafactorOptions>;

}  // namespace apogee::optim
