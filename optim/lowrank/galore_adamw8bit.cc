// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore_adamw8bit.h"

#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/core/update_chunk.h"
#include "apogee/optim/lowbit/adam8_step.h"

namespace apogee::optim {
namespace {

Adam8Settings Settings(const GaLoreAdamW8bitOptions& o) {
  return {.lr = o.lr,
          .betas = o.betas,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .bits = o.bits,
          .min_8bit_size = o.min_8bit_size,
          .block = o.block_wise ? o.block_size : 0,
          .cuda = o.kernel == "cuda"};
}

}  // namespace

std::vector<OptionField<GaLoreAdamW8bitOptions>> GaLoreAdamW8bitOptions::Fields() {
  using O = GaLoreAdamW8bitOptions;
  return JoinFields<O>({Adam8Fields<O>(),
                        {{"kernel", &O::kernel, {}, "decay order and sign rule: cuda or cpu"}},
                        GaLoreFields<O>()});
}

void GaLoreAdamW8bitOptions::Check(OptionProblems& problems) const {
  Adam8Settings settings = Settings(*this);
  settings.block = block_size;
  CheckAdam8(settings, kernel, problems);
  CheckGaLore(GaLoreOf(*this), problems);
}

void GaLoreAdamW8bitRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  const GaLoreSettings settings = GaLoreOf(of.options);
  const Adam8Settings adam = Settings(of.options);
  if (!Projects(settings, of.view)) {
    return AppendAdam8Specs(adam, of.view.layout().logical_shape().numel(), {}, specs);
  }
  const Shape shape = PlanOf(settings, of.view).low_rank();
  if (KeepsMoments(of.view)) AppendAdam8Specs(adam, shape.numel(), shape, specs);
  AppendBasisSpecs(settings, of.view, specs);
}

bool GaLoreAdamW8bitRule::ReducesOwnGrad(const ParamView& view, int group) const {
  const GaLoreSettings settings = SettingsOf(group);
  if (!Projects(settings, view)) return false;
  const bool codes = Settings(options(group)).UsesCodes(LowRankNumel(settings, view));
  return !codes || view.compute_dtype() == DType::kF64;
}

void GaLoreAdamW8bitRule::DeclareStats(int phase, std::span<const ActiveParam> params,
                                       StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const GaLoreSettings settings = SettingsOf(p.group);
    const Adam8Settings adam = Settings(options(p.group));
    if (Projects(settings, *p.view)) {
      Declare(phase, settings, p, buffer);
    } else if (phase == kProjectionPhase && NeedsAbsMaxPhase(adam, *p.view)) {
      buffer.AddMaxima(*p.view, NumAbsMax(adam, *p.view));
    }
  }
}

std::string GaLoreAdamW8bitRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const std::vector<ActiveParam> plain =
      ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
        Compute(phase, settings, param, step, buffer);
      });
  for (const ActiveParam& p : plain) {
    const StatBuffer::Entry* entry = FindEntry(buffer.max_entries(), p.view);
    if (entry == nullptr) continue;
    StatSlice(buffer, StatSection::kMaxima, entry->offset, entry->count)
        .CopyFrom(Adam8AbsMax(Settings(options(p.group)), p, step.decision.grad_scale()));
  }
  return "";
}

void GaLoreAdamW8bitRule::MoveMoments(const GaLoreAdamW8bitOptions& o, const ParamView& view,
                                      const Projected& projected) {
  if (!projected.refreshed || o.on_refresh == "keep") return;
  const Adam8Settings settings = Settings(o);
  for (const bool second : {false, true}) {
    const Tensor moment = view.state(second ? "state2" : "state1");
    const auto moved = [&](const Tensor& x) {
      if (o.on_refresh == "rotate") return projected.rotation.Apply(x, second);
      return Tensor::Zeros(x.shape(), x.dtype(), x.context(), MemoryCategory::kWorkspace);
    };
    if (!settings.UsesCodes(moment.numel())) {
      moment.CopyFrom(moved(moment));
      continue;
    }
    const CodeMap& map = second ? CodeMap::Unsigned() : CodeMap::Signed();
    const QuantizedState state(moment, view.state(second ? "absmax2" : "absmax1"), map,
                               settings.block);
    state.Quantize(moved(state.Dequantize(view.compute_dtype())));
  }
}

Tensor GaLoreAdamW8bitRule::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                          const Projected& projected, const RuleStep& step) {
  const GaLoreAdamW8bitOptions& o = options(param.group);
  MoveMoments(o, states, projected);
  return Adam8LowRankStep(Settings(o), states, projected.grad, step.decision.grad_scale());
}

void GaLoreAdamW8bitRule::Update(const RuleStep& step) {
  const GaLoreAdamW8bitOptions& o = options(step.group);
  const std::vector<ActiveParam> plain =
      ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
        UpdateProjected(settings, param, step, DecayKind::kAfter, o.lr * o.weight_decay,
                        {.rate = 1});
      });
  const StatBuffer& scales = step.totals[kProjectionPhase];
  std::vector<Adam8Param> updates;
  for (const ActiveParam& p : plain) {
    Adam8Param& update = updates.emplace_back(Adam8Param{&p, step.decision.grad_scale(), {}});
    if (const StatBuffer::Entry* entry = FindEntry(scales.max_entries(), p.view)) {
      update.new_scales = StatSlice(scales, StatSection::kMaxima, entry->offset, entry->count)
                              .To(p.view->compute_dtype(), MemoryCategory::kWorkspace);
    }
  }
  if (!updates.empty()) Adam8Update(Settings(o), updates);
}

template class OptimizerOf<GaLoreAdamW8bitRule>;

}  // namespace apogee::optim
