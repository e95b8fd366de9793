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

std::vector<std::string> GaLoreAdamW8bitOptions::Problems() const {
  OptionProblems problems;
  Adam8Settings settings = Settings(*this);
  settings.block = block_size;
  CheckAdam8(settings, kernel, problems);
  if (block_size == 0) problems.Add("block_size is 0, must be a power of two from 64 to 4096");
  CheckGaLore(GaLoreOf(*this), problems);
  return problems.list();
}

std::vector<OptionField<GaLoreAdamW8bitOptions>> GaLoreAdamW8bitOptions::Fields() {
  using O = GaLoreAdamW8bitOptions;
  std::vector<OptionField<O>> fields = {{"lr", &O::lr},
                                        {"betas", &O::betas},
                                        {"eps", &O::eps},
                                        {"weight_decay", &O::weight_decay},
                                        {"bits", &O::bits},
                                        {"min_8bit_size", &O::min_8bit_size},
                                        {"block_size", &O::block_size},
                                        {"block_wise", &O::block_wise},
                                        {"kernel", &O::kernel}};
  AppendGaLoreFields(fields);
  return fields;
}

std::span<const StateSpec> GaLoreAdamW8bit::StatesUnder(
    const ParamView& view, const GaLoreAdamW8bitOptions& options) const {
  const GaLoreSettings settings = GaLoreOf(options);
  std::vector<StateSpec> specs;
  if (Projects(settings, view)) {
    const Shape shape = PlanOf(settings, view).low_rank();
    if (KeepsMoments(view)) AppendAdam8Specs(Settings(options), shape.numel(), shape, specs);
    AppendBasisSpecs(settings, view, specs);
  } else {
    AppendAdam8Specs(Settings(options), view.layout().logical_shape().numel(), {}, specs);
  }
  return KeepSpecs(std::move(specs));
}

bool GaLoreAdamW8bit::ReducesOwnGrad(const ParamView& view, int group) const {
  const GaLoreSettings settings = GaLoreOf(options(group));
  if (!Projects(settings, view)) return false;
  const bool codes = Settings(options(group)).UsesCodes(LowRankNumel(settings, view));
  return !codes || view.compute_dtype() == DType::kF64;
}

void GaLoreAdamW8bit::DeclareStats(int phase, std::span<const ActiveParam> params,
                                   StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const GaLoreSettings settings = GaLoreOf(options(p.group));
    const Adam8Settings adam = Settings(options(p.group));
    if (Projects(settings, *p.view)) {
      Declare(phase, settings, p, buffer);
    } else if (phase == kProjectionPhase && NeedsAbsMaxPhase(adam, *p.view)) {
      buffer.AddMaxima(*p.view, NumAbsMax(adam, *p.view));
    }
  }
}

void GaLoreAdamW8bit::ComputeStats(int phase, std::span<const ActiveParam> params,
                                   const StepDecision& decision, std::span<const StatBuffer> totals,
                                   StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const GaLoreSettings settings = GaLoreOf(options(p.group));
    if (Projects(settings, *p.view)) {
      Compute(phase, settings, p, decision, totals, buffer);
    } else if (const StatBuffer::Entry* entry = FindEntry(buffer.max_entries(), p.view)) {
      StatSlice(buffer, StatSection::kMaxima, entry->offset, entry->count)
          .CopyFrom(Adam8AbsMax(Settings(options(p.group)), p, decision.grad_scale()));
    }
  }
}

void GaLoreAdamW8bit::MoveMoments(const GaLoreAdamW8bitOptions& o, const ParamView& view,
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

Tensor GaLoreAdamW8bit::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                      const Projected& projected, const StepDecision& decision,
                                      std::span<const StatBuffer>) {
  const GaLoreAdamW8bitOptions& o = options(param.group);
  MoveMoments(o, states, projected);
  return Adam8LowRankStep(Settings(o), states, projected.grad, decision.grad_scale());
}

void GaLoreAdamW8bit::Update(int group, std::span<const ActiveParam> params,
                             const StepDecision& decision, std::span<const StatBuffer> totals) {
  const GaLoreAdamW8bitOptions& o = options(group);
  const GaLoreSettings settings = GaLoreOf(o);
  const Adam8Settings adam = Settings(o);
  std::vector<Adam8Param> plain;
  for (const ActiveParam& p : params) {
    if (!Projects(settings, *p.view)) {
      Adam8Param& update = plain.emplace_back();
      update.param = &p;
      update.grad_scale = decision.grad_scale();
      const StatBuffer& scales = totals[kProjectionPhase];
      if (const StatBuffer::Entry* entry = FindEntry(scales.max_entries(), p.view)) {
        update.new_scales = StatSlice(scales, StatSection::kMaxima, entry->offset, entry->count)
                                .To(p.view->compute_dtype(), MemoryCategory::kWorkspace);
      }
      continue;
    }
    UpdateProjected(settings, p, decision, totals, DecayKind::kAfter, o.lr * o.weight_decay,
                    {.rate = 1});
  }
  if (!plain.empty()) Adam8Update(adam, plain);
}

template class TypedOptimizer<GaLoreAdamW8bitOptions>;

}  // namespace apogee::optim
