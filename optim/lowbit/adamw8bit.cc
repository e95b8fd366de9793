// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowbit/adamw8bit.h"

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/lowbit/adam8_step.h"

namespace apogee::optim {
namespace {

constexpr int64_t kPagedElements = 100000;  // smaller tensors are never paged

Adam8Settings Settings(const AdamW8bitOptions& o) {
  return {.lr = o.lr,
          .betas = o.betas,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .bits = o.bits,
          .min_8bit_size = o.min_8bit_size,
          .block = o.block_wise ? o.block_size : 0,
          .cuda = o.kernel == "cuda"};
}

int64_t StateBytes(const ParamView& view) {
  int64_t bytes = 0;
  for (const NamedState& state : view.states()) bytes += state.value.bytes();
  return bytes;
}

}  // namespace

AdamW8bitOptions AdamW8bitOptions::Cpu() { return {.kernel = "cpu"}; }

std::vector<OptionField<AdamW8bitOptions>> AdamW8bitOptions::Fields() {
  using O = AdamW8bitOptions;
  return JoinFields<O>({Adam8Fields<O>(),
                        {{"percentile_clipping",
                          &O::percentile_clipping,
                          {},
                          "clips at this percentile of the last 100 norms; 100: does not"},
                         {"paged", &O::paged, {}, "large states may live in host memory"},
                         {"kernel", &O::kernel, {}, "decay order and sign rule: cuda or cpu"}}});
}

void AdamW8bitOptions::Check(OptionProblems& problems) const {
  Adam8Settings settings = Settings(*this);
  settings.block = block_size;
  CheckAdam8(settings, kernel, problems);
  if (percentile_clipping < 1 || percentile_clipping > 100) {
    problems.Add(internal::Concat("percentile_clipping is ", percentile_clipping,
                                  ", must be from 1 to 100 (100: off)"));
  }
}

Adam8Settings AdamW8bitRule::SettingsOf(int group) const { return Settings(options(group)); }

OptimizerTraits AdamW8bitRule::traits() {
  return {.shards = true,
          .decides_on_device = true,
          .num_stat_phases = 2,
          .of_param = [this](const ParamView& view, int group) {
            const int64_t numel = view.layout().logical_shape().numel();
            return ParamTraits{.cut_multiple = SettingsOf(group).CutMultiple(numel)};
          }};
}

void AdamW8bitRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  AppendAdam8Specs(Settings(of.options), of.view.layout().logical_shape().numel(), {}, specs);
  if (of.options.percentile_clipping < 100) {
    specs.push_back({"gnorm_history", StateKind::kHistory, {kNormHistory}});
  }
}

void AdamW8bitRule::DeclareStats(int phase, std::span<const ActiveParam> params,
                                 StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    if (phase == 0) {
      if (options(p.group).percentile_clipping < 100) buffer.AddSums(*p.view, 1);
    } else if (const Adam8Settings s = SettingsOf(p.group); NeedsAbsMaxPhase(s, *p.view)) {
      buffer.AddMaxima(*p.view, NumAbsMax(s, *p.view));
    }
  }
}

std::string AdamW8bitRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  const std::span<const ActiveParam> params = step.params;
  if (phase == 0) {
    std::vector<SquareSumChunk> chunks;
    for (const ActiveParam& p : params) {
      if (options(p.group).percentile_clipping == 100) continue;
      const Layout& layout = p.view->layout();
      chunks.push_back(
          {p.grad.raw(), p.grad.dtype(), layout.local_numel(), SumsAt(buffer, chunks.size())});
    }
    if (chunks.empty()) return "";
    const DeviceContext& context = *params[0].grad.context();
    OptimKernelsFor(context).square_sums(context, {buffer.dtype(), chunks});
    return "";
  }
  if (buffer.max_entries().empty()) return "";
  const std::vector<GradFactor> scales =
      GradScales(params, /*ahead=*/1, /*store=*/false, step.decision, step.totals[0]);
  for (size_t i = 0; i < params.size(); ++i) {
    const ActiveParam& p = params[i];
    const StatBuffer::Entry* entry = FindEntry(buffer.max_entries(), p.view);
    if (entry == nullptr) continue;
    StatSlice(buffer, StatSection::kMaxima, entry->offset, entry->count)
        .CopyFrom(Adam8AbsMax(SettingsOf(p.group), p, scales[i]));
  }
  return "";
}

std::vector<GradFactor> AdamW8bitRule::GradScales(std::span<const ActiveParam> params,
                                                  int64_t ahead, bool store,
                                                  const StepDecision& decision,
                                                  const StatBuffer& squares) {
  std::vector<GradFactor> scales(params.size(), decision.grad_scale());
  std::vector<PercentileChunk> chunks;
  std::vector<size_t> owners;
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamView& view = *params[i].view;
    const int64_t percentile = options(params[i].group).percentile_clipping;
    if (percentile == 100) continue;
    const Tensor history = view.state("gnorm_history");
    chunks.push_back({SumsAt(squares, EntryOf(squares, params[i])), history.raw(), history.dtype(),
                      view.step() + ahead, percentile, nullptr});
    owners.push_back(i);
  }
  if (chunks.empty()) return scales;
  const ContextPtr& context = params[0].grad.context();
  gates_ = Tensor::Empty({static_cast<int64_t>(chunks.size() * sizeof(StepGate))}, DType::kU8,
                         context, MemoryCategory::kWorkspace);
  auto* gate = static_cast<StepGate*>(gates_.raw());
  for (PercentileChunk& chunk : chunks) chunk.gate = gate++;
  OptimKernelsFor(*context).percentile_clip(
      *context, {squares.dtype(), decision.grad_scale(), store, chunks});
  for (size_t k = 0; k < chunks.size(); ++k) {
    scales[owners[k]] = GradFactor::Of(chunks[k].gate, context->is_host());
  }
  return scales;
}

void AdamW8bitRule::Update(const RuleStep& step) {
  const std::span<const ActiveParam> params = step.params;
  const StatBuffer& maxima = step.totals[1];
  const std::vector<GradFactor> scales =
      GradScales(params, /*ahead=*/0, /*store=*/true, step.decision, step.totals[0]);
  std::vector<Adam8Param> updates;
  for (size_t i = 0; i < params.size(); ++i) {
    Adam8Param& update = updates.emplace_back();
    update.param = &params[i];
    update.grad_scale = scales[i];
    if (const StatBuffer::Entry* entry = FindEntry(maxima.max_entries(), params[i].view)) {
      update.new_scales = StatSlice(maxima, StatSection::kMaxima, entry->offset, entry->count)
                              .To(params[i].view->compute_dtype(), MemoryCategory::kWorkspace);
    }
  }
  Adam8Update(SettingsOf(step.group), updates);
}

int64_t AdamW8bit::state_bytes() const {
  int64_t bytes = 0;
  for (const ParamView& view : views()) bytes += StateBytes(view);
  return bytes;
}

int64_t AdamW8bit::paged_bytes() const {
  int64_t bytes = 0;
  ForEachView([&](const ParamView& view, int group) {
    const bool large = view.layout().logical_shape().numel() >= kPagedElements;
    if (options(group).paged && large) bytes += StateBytes(view);
  });
  return bytes;
}

template class OptimizerOf<AdamW8bitRule>;

}  // namespace apogee::optim
