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

void GaLoreAdafactorOptions::Check(OptionProblems& problems) const {
  AdafactorOf(*this).Check(problems);
  CheckGaLore(GaLoreOf(*this), problems);
}

std::vector<OptionField<GaLoreAdafactorOptions>> GaLoreAdafactorOptions::Fields() {
  using O = GaLoreAdafactorOptions;
  return JoinFields<O>({AdafactorFields<O>(), GaLoreFields<O>()});
}

GaLoreAdafactorRule::GaLoreAdafactorRule(std::vector<GaLoreAdafactorOptions> groups)
    : GaLoreRule(std::move(groups)), step_(std::make_unique<AdafactorStep>([this](int group) {
        return AdafactorOf(options(group));
      })) {}

GaLoreAdafactorRule::~GaLoreAdafactorRule() = default;

void GaLoreAdafactorRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  const GaLoreSettings settings = GaLoreOf(of.options);
  if (!Projects(settings, of.view)) {
    return AdafactorStep::AppendStates(of.view, AdafactorOf(of.options), specs);
  }
  if (KeepsMoments(of.view)) {
    const Shape shape = PlanOf(settings, of.view).low_rank();
    specs = {{"exp_avg_sq_row", StateKind::kLowRank, {shape[0]}},
             {"exp_avg_sq_col", StateKind::kLowRank, {shape[1]}}};
    if (of.options.beta1 != 0) specs.push_back({"exp_avg", StateKind::kLowRank, shape});
  }
  AppendBasisSpecs(settings, of.view, specs);
}

// AdafactorStep needs its entries to be the first. The projection looks for the first entry of its
// parameter. The sums of w^2 are needed in every step, so they come after the projection's entry in
// kProjectionPhase, the phase in which every shard has one.
void GaLoreAdafactorRule::DeclareStats(int phase, std::span<const ActiveParam> params,
                                       StatBuffer& buffer) {
  const std::vector<ActiveParam> plain = ForEachProjected(params, [](const auto&...) {});
  if (phase >= kProjectionPhase) step_->Declare(phase - kProjectionPhase, plain, buffer);
  ForEachProjected(params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
    Declare(phase, settings, param, buffer);
    const bool scaled = options(param.group).scale_parameter;
    if (phase == kProjectionPhase && scaled) buffer.AddSums(*param.view, 1);
  });
}

std::string GaLoreAdafactorRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const std::vector<ActiveParam> plain =
      ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
        Compute(phase, settings, param, step, buffer);
      });
  if (phase >= kProjectionPhase) {
    step_->Compute(phase - kProjectionPhase,
                   {plain, step.decision, step.totals.subspan(kProjectionPhase)}, buffer);
  }
  if (phase == kProjectionPhase) SumWeights(step.params, buffer);
  return "";
}

void GaLoreAdafactorRule::SumWeights(std::span<const ActiveParam> params,
                                     StatBuffer& buffer) const {
  std::vector<ActiveParam> scaled;
  ForEachProjected(params, [&](const ActiveParam& param, const GaLoreSettings&) {
    if (options(param.group).scale_parameter) scaled.push_back(param);
  });
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
  RunKernel(scaled, &OptimKernels::adafactor_square_sums,
            AdafactorSumArgs{{}, buffer.dtype(), /*grad_scale=*/1, /*with_weights=*/true, {}},
            make_chunk);
}

// With rotate, computes the mean squares that the averages represent, row_i * col_j / mean(row),
// rotates them, and averages them again.
void GaLoreAdafactorRule::MoveStates(const GaLoreAdafactorOptions& o, const ParamView& view,
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

SizedRate GaLoreAdafactorRule::Alpha(const ActiveParam& param, int64_t t,
                                     std::span<const StatBuffer> totals) const {
  const GaLoreAdafactorOptions& o = options(param.group);
  const ParamView& view = *param.view;
  SizedRate alpha{.rate = RelativeRate(AdafactorOf(o), t),
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

Tensor GaLoreAdafactorRule::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                          const Projected& projected, const RuleStep& step) {
  const GaLoreAdafactorOptions& o = options(param.group);
  MoveStates(o, states, projected);
  return AdafactorLowRankStep(AdafactorOf(o), Alpha(param, states.step(), step.totals), states,
                              projected.grad, step.decision);
}

void GaLoreAdafactorRule::Update(const RuleStep& step) {
  const GaLoreAdafactorOptions& o = options(step.group);
  const std::vector<ActiveParam> plain =
      ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
        UpdateProjected(settings, param, step, DecayKind::kBefore, o.weight_decay,
                        Alpha(param, param.view->step(), step.totals));
      });
  if (plain.empty()) return;
  step_->Update({plain, step.decision, step.totals.subspan(kProjectionPhase), step.group});
}

template class OptimizerOf<GaLoreAdafactorRule>;

}  // namespace apogee::optim
