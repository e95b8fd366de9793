#include "apogee/optim/adamw8bit.h"

#include <algorithm>
#include <cmath>

#include "apogee/optim/stat_values.h"

namespace apogee::optim {
namespace {

constexpr int64_t kHistory = 100;           // squared norms behind percentile clipping
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

// The history after step `step`: bitsandbytes fills it with the first norm.
std::vector<double> HistoryAfter(const ParamView& view, int64_t step, double squares) {
  std::vector<double> history = view.state("gnorm_history").ToVector<double>();
  if (step == 1) {
    std::ranges::fill(history, squares);
  } else {
    history[static_cast<size_t>(step % kHistory)] = squares;
  }
  return history;
}

int64_t StateBytes(const ParamView& view) {
  int64_t bytes = 0;
  for (const NamedState& state : view.states()) bytes += state.value.bytes();
  return bytes;
}

}  // namespace

AdamW8bitOptions AdamW8bitOptions::Cpu() { return {.kernel = "cpu"}; }

std::vector<std::string> AdamW8bitOptions::Problems() const {
  OptionProblems problems;
  Adam8Settings settings = Settings(*this);
  settings.block = block_size;
  CheckAdam8(settings, kernel, problems);
  if (block_size == 0) problems.Add("block_size is 0, must be a power of two from 64 to 4096");
  if (percentile_clipping < 1 || percentile_clipping > 100) {
    problems.Add(internal::Concat("percentile_clipping is ", percentile_clipping,
                                  ", must be from 1 to 100 (100: off)"));
  }
  return problems.list();
}

std::vector<OptionField<AdamW8bitOptions>> AdamW8bitOptions::Fields() {
  using O = AdamW8bitOptions;
  return {{"lr", &O::lr},
          {"betas", &O::betas},
          {"eps", &O::eps},
          {"weight_decay", &O::weight_decay},
          {"bits", &O::bits},
          {"min_8bit_size", &O::min_8bit_size},
          {"block_size", &O::block_size},
          {"block_wise", &O::block_wise},
          {"percentile_clipping", &O::percentile_clipping},
          {"paged", &O::paged},
          {"kernel", &O::kernel}};
}

Adam8Settings AdamW8bit::SettingsOf(int group) const { return Settings(options(group)); }

std::span<const StateSpec> AdamW8bit::StatesUnder(const ParamView& view,
                                                  const AdamW8bitOptions& options) const {
  std::vector<StateSpec> specs;
  AppendAdam8Specs(Settings(options), view.layout().logical_shape().numel(), {}, specs);
  if (options.percentile_clipping < 100) {
    specs.push_back({"gnorm_history", StateKind::kHistory, {kHistory}});
  }
  return specs_.Keep(std::move(specs));
}

void AdamW8bit::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    if (phase == 0) {
      if (options(p.group).percentile_clipping < 100) buffer.AddSums(*p.view, 1);
    } else if (const Adam8Settings s = SettingsOf(p.group); NeedsAbsMaxPhase(s, *p.view)) {
      buffer.AddMaxima(*p.view, NumAbsMax(s, *p.view));
    }
  }
}

void AdamW8bit::ComputeStats(int phase, std::span<const ActiveParam> params,
                             const StepDecision& decision, std::span<const StatBuffer> totals,
                             StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const DeviceContext& context = *p.grad.context();
    if (phase == 0) {
      const StatBuffer::Entry* entry = FindEntry(buffer.sum_entries(), p.view);
      if (entry == nullptr) continue;
      NormChunk chunk{p.grad.raw(), p.grad.dtype(), p.view->layout().local_numel(), 0};
      OptimKernelsFor(context).grad_norm(context, {NormKind::kL2, {&chunk, 1}});
      StatSlice(buffer, StatSection::kSums, entry->offset, 1)
          .Fill(chunk.result / p.view->layout().num_replicas());
    } else if (const StatBuffer::Entry* entry = FindEntry(buffer.max_entries(), p.view)) {
      const double scale = GradScale(p, p.view->step() + 1, decision, totals);
      StatSlice(buffer, StatSection::kMaxima, entry->offset, entry->count)
          .CopyFrom(Adam8AbsMax(SettingsOf(p.group), p, scale));
    }
  }
}

double AdamW8bit::GradScale(const ActiveParam& param, int64_t step, const StepDecision& decision,
                            std::span<const StatBuffer> totals) const {
  const double scale = decision.grad_scale();
  const int64_t percentile = options(param.group).percentile_clipping;
  if (percentile == 100) return scale;
  const double squares = SquaredNorm(*param.view, decision, totals);
  std::vector<double> history = HistoryAfter(*param.view, step, squares);
  std::ranges::sort(history);
  const double limit = std::sqrt(history[static_cast<size_t>(percentile)]);
  const double norm = std::sqrt(squares);
  return norm > limit ? scale * limit / norm : scale;
}

double AdamW8bit::SquaredNorm(const ParamView& view, const StepDecision& decision,
                              std::span<const StatBuffer> totals) {
  const StatBuffer::Entry* entry = FindEntry(totals[0].sum_entries(), &view);
  const double scale = decision.grad_scale();
  return StatNumber(totals[0], StatSection::kSums, entry->offset) * scale * scale;
}

void AdamW8bit::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                       std::span<const StatBuffer> totals) {
  std::vector<Adam8Param> updates;
  for (const ActiveParam& p : params) {
    Adam8Param& update = updates.emplace_back();
    update.param = &p;
    update.grad_scale = GradScale(p, p.view->step(), decision, totals);
    if (options(group).percentile_clipping < 100) {
      const Tensor history = p.view->state("gnorm_history");
      const double squares = SquaredNorm(*p.view, decision, totals);
      history.CopyFrom(Tensor::FromVector(HistoryAfter(*p.view, p.view->step(), squares),
                                          history.shape(), history.context()));
    }
    if (const StatBuffer::Entry* entry = FindEntry(totals[1].max_entries(), p.view)) {
      update.new_scales = StatSlice(totals[1], StatSection::kMaxima, entry->offset, entry->count)
                              .To(p.view->compute_dtype(), MemoryCategory::kWorkspace);
    }
  }
  Adam8Update(SettingsOf(group), updates);
}

int64_t AdamW8bit::state_bytes() const {
  int64_t bytes = 0;
  for (const ParamView& view : views()) bytes += StateBytes(view);
  return bytes;
}

int64_t AdamW8bit::paged_bytes() const {
  int64_t bytes = 0;
  for (int group = 0, i = 0; group < num_groups(); ++group) {
    for (int k = 0; k < group_size(group); ++k, ++i) {
      const ParamView& view = views()[static_cast<size_t>(i)];
      const bool large = view.layout().logical_shape().numel() >= kPagedElements;
      if (options(group).paged && large) bytes += StateBytes(view);
    }
  }
  return bytes;
}

}  // namespace apogee::optim
