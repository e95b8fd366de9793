// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/scaled_adam.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/step/median_clipping.h"

namespace apogee::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsScalar(const ParamView& view) { return view.layout().logical_shape().numel() == 1; }

}  // namespace

ScaledAdamRule::ScaledAdamRule(std::vector<ScaledAdamOptions> groups)
    : RuleOf(kName, std::move(groups)),
      last_(static_cast<size_t>(num_groups())),
      undecided_(last_.size()),
      kept_(last_.size()) {}

void ScaledAdamRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  specs = {{"delta"}, {"exp_avg_sq"}};
  if (IsScalar(of.view)) return;
  for (const char* name : {"param_rms", "scale_exp_avg_sq", "scale_grad_sum", "scale_grad_sumsq"}) {
    specs.push_back({name, StateKind::kScalar});
  }
}

absl::Status ScaledAdamRule::CheckGroupState(const GroupState& state,
                                             const OptionMap& saved) const {
  ScaledAdamOptions options;
  APOGEE_RETURN_IF_ERROR(SetOptions(saved, kName, options));
  for (const auto& [key, values] : state) {
    const size_t expected = key == "model_norms"
                                ? static_cast<size_t>(options.clipping_update_period)
                            : key == "quartiles" ? 5
                            : key == "clip_step" || key == "model_norm_threshold" ||
                                    key == "num_clipped" || key == "percent_clipped"
                                ? 1
                                : 0;
    if (expected == 0)
      return InvalidArgument("group state \"", key, "\" is not one of scaled_adam's");
    if (values.size() != expected) {
      return InvalidArgument("group state \"", key, "\" has ", values.size(), " numbers, expected ",
                             expected);
    }
  }
  return absl::OkStatus();
}

void ScaledAdamRule::DeclareStats(int, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, 3);
}

std::string ScaledAdamRule::ComputeStats(int, const RuleStep& step, StatBuffer& buffer) {
  const std::span<const ActiveParam> params = step.params;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<DotChunk> chunks;
    for (size_t i = 0; i < params.size(); ++i) {
      const ActiveParam& param = params[i];
      ParamView& view = *param.view;
      if (view.compute_dtype() != dtype) continue;
      const ScaledAdamOptions& o = options(param.group);
      const int64_t t = view.step();
      const bool size_step = t == 0 || t % o.size_update_period == o.size_update_period - 1;
      if (IsScalar(view) && o.clipping_scale == 0) continue;
      const Layout& layout = view.layout();
      chunks.push_back({view.master().raw(), param.grad.raw(), param.grad.dtype(),
                        layout.local_numel(), size_step || o.clipping_scale > 0,
                        SumsAt(buffer, i)});
    }
    if (chunks.empty()) continue;
    const DeviceContext& context = *params[0].grad.context();
    OptimKernelsFor(context).dots(context,
                                  {dtype, buffer.dtype(), step.decision.grad_scale(), chunks});
  }
  return "";
}

Tensor ScaledAdamRule::ClippingState(int group, const ContextPtr& context) {
  Kept& kept = kept_[static_cast<size_t>(group)];
  if (!kept.state.defined() || kept.state.context() != context) {
    Fetch(group);
    kept.state = PackClipping(store().mutable_group_state(group),
                              options(group).clipping_update_period, context);
  }
  kept.ahead = true;
  return kept.state;
}

void ScaledAdamRule::Fetch(int group) {
  Kept& kept = kept_[static_cast<size_t>(group)];
  if (!std::exchange(kept.ahead, false)) return;
  store().mutable_group_state(group) = UnpackClipping(kept.state);
}

void ScaledAdamRule::On(RuleEvent event) {
  if (event == RuleEvent::kLoaded) kept_.assign(kept_.size(), {});
  for (size_t group = 0; group < last_.size(); ++group) {
    if (event == RuleEvent::kReadGroupState) {
      Fetch(static_cast<int>(group));
    } else if (event == RuleEvent::kKept || event == RuleEvent::kRevoked) {
      const bool kept = event == RuleEvent::kKept && undecided_[group].has_value();
      if (kept) last_[group] = std::move(*undecided_[group]);
      undecided_[group].reset();
    }
  }
}

ScaledAdamSizeChunk ScaledAdamRule::SizeChunk(const ActiveParam& param, const void* sums) const {
  const ParamView& view = *param.view;
  const ScaledAdamOptions& o = options(param.group);
  const double one_minus_beta1 = 1 - o.betas[0];
  ScaledAdamSizeChunk chunk{};
  chunk.sums = sums;
  chunk.numel = static_cast<double>(view.layout().logical_shape().numel());
  if (IsScalar(view)) {
    chunk.norm_factor = o.icefall_2023 ? 1 : o.scalar_lr_scale;
    chunk.rate = -o.lr * o.scalar_lr_scale * one_minus_beta1;
    return chunk;
  }
  chunk.param_rms = view.state("param_rms").raw();
  chunk.scale_exp_avg_sq = view.state("scale_exp_avg_sq").raw();
  chunk.scale_grad_sum = view.state("scale_grad_sum").raw();
  chunk.scale_grad_sumsq = view.state("scale_grad_sumsq").raw();
  const int64_t t = view.step() - 1, period = o.size_update_period;
  chunk.first_step = t == 0;
  chunk.opens_period = t % period == 0;
  chunk.ends_period = t % period == period - 1;
  chunk.beta = std::pow(o.betas[1], static_cast<double>(period));
  chunk.root = std::sqrt(1 - std::pow(chunk.beta, static_cast<double>((t + 1) / period)));
  chunk.rate = -o.lr * one_minus_beta1;
  return chunk;
}

void ScaledAdamRule::Update(const RuleStep& step) {
  const std::span<const ActiveParam> params = step.params;
  const std::span<const StatBuffer> totals = step.totals;
  const StepDecision& decision = step.decision;
  const int group = step.group;
  const ScaledAdamOptions& o = options(group);
  const ContextPtr& context = params[0].grad.context();
  const auto count = static_cast<int64_t>(params.size());
  const size_t first = EntryOf(totals[0], params[0]);
  const bool clips = o.clipping_scale > 0;
  const auto numbers = [&](int64_t n) {
    return Tensor::Empty({n}, DType::kF64, context, MemoryCategory::kWorkspace);
  };

  LastStep last;
  last.gate =
      Tensor::Empty({int64_t{sizeof(StepGate)}}, DType::kU8, context, MemoryCategory::kWorkspace);
  auto* const gate = static_cast<StepGate*>(last.gate.raw());
  const Tensor steps = numbers(2 * count);
  MedianClipArgs clipping{.grad_scale = decision.grad_scale(),
                          .options = {o.clipping_scale, o.clipping_update_period, !o.icefall_2023},
                          .dropped_only = o.icefall_2023,
                          .gate = gate};
  if (clips) {
    for (const ActiveParam& param : params) last.views.push_back(param.view);
    last.shares = numbers(3 * count);
    clipping.shares = static_cast<const double*>(last.shares.raw());
    clipping.count = count;
    clipping.state = static_cast<MedianClippingState*>(ClippingState(group, context).raw());
  }

  const auto index = [&](const ActiveParam& param) { return &param - params.data(); };
  const auto step_of = [&](const ActiveParam& param) {
    return static_cast<double*>(steps.raw()) + 2 * index(param);
  };
  const auto make_size = [&](const ActiveParam& param) {
    const auto i = index(param);
    ScaledAdamSizeChunk chunk = SizeChunk(param, SumsAt(totals[0], first + static_cast<size_t>(i)));
    if (clips) chunk.share = static_cast<double*>(last.shares.raw()) + 3 * i;
    chunk.step = step_of(param);
    return chunk;
  };
  const auto run_sizes = [&](KernelSlot<ScaledAdamSizeArgs> OptimKernels::*kernel) {
    RunKernel(params, kernel,
              ScaledAdamSizeArgs{{},
                                 totals[0].dtype(),
                                 gate,
                                 o.size_update_period,
                                 o.lr * o.scalar_lr_scale,
                                 1 - o.betas[0],
                                 o.eps,
                                 o.param_min_rms,
                                 o.param_max_rms,
                                 o.icefall_2023,
                                 {}},
              make_size);
  };
  if (clips) run_sizes(&OptimKernels::scaled_adam_shares);
  OptimKernelsFor(*context).median_clip(*context, clipping);
  run_sizes(&OptimKernels::scaled_adam_sizes);

  const auto make_chunk = [&](const ActiveParam& param) {
    const ParamView& view = *param.view;
    ScaledAdamChunk chunk = MakeUpdateChunk<ScaledAdamChunk>(param);
    chunk.delta = view.state("delta").raw();
    chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
    chunk.step = step_of(param);
    const double correction = 1 - std::pow(o.betas[1], static_cast<double>(view.step()));
    const bool always = o.icefall_2023 && IsScalar(view);
    chunk.v_scale = correction < 0.99 || always ? 1 / correction : 1;
    chunk.limit = IsScalar(view) ? o.scalar_max : kInfinity;
    return chunk;
  };
  RunKernel(params, &OptimKernels::scaled_adam,
            ScaledAdamArgs{{},
                           GradFactor::Of(gate, context->is_host()),
                           o.betas[0],
                           o.betas[1],
                           o.eps,
                           o.icefall_2023,
                           {}},
            make_chunk);
  if (decision.gate != nullptr) {
    undecided_[static_cast<size_t>(group)] = std::move(last);
  } else {
    last_[static_cast<size_t>(group)] = std::move(last);
  }
}

ClippingReport ScaledAdamRule::Clipping(int group, int num_dominant) const {
  const LastStep& last = last_[static_cast<size_t>(group)];
  const GroupState& state = store().group_state(group);
  ClippingReport report;
  if (last.gate.defined()) {
    StepGate gate;
    last.gate.context()->CopyToHost(&gate, last.gate.raw(), sizeof(StepGate));
    report.norm = gate.grad_norm;
    report.factor = gate.clip_factor;
  }
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    return found == state.end() ? 0 : found->second[0];
  };
  report.threshold = number("model_norm_threshold");
  report.percent_clipped = number("percent_clipped");
  report.num_clipped = static_cast<int64_t>(number("num_clipped"));
  if (const auto found = state.find("quartiles"); found != state.end()) {
    std::ranges::copy(found->second, report.quartiles.begin());
  }
  const std::vector<double> shares =
      last.shares.defined() ? last.shares.ToVector<double>() : std::vector<double>();
  for (size_t i = 0; i < last.views.size(); ++i) {
    report.dominant.push_back(
        {last.views[i]->name(), shares[3 * i], shares[3 * i + 1], shares[3 * i + 2]});
  }
  const bool finite = std::isfinite(report.norm);
  const auto broken = static_cast<double>(std::ranges::count_if(
      report.dominant, [](const GradientShare& share) { return !std::isfinite(share.share); }));
  for (GradientShare& share : report.dominant) {
    if (finite) {
      share.share = report.norm > 0 ? share.share / (report.norm * report.norm) : 0;
    } else {  // shares that are not finite dominate all others
      share.share = std::isfinite(share.share) ? 0 : 1 / broken;
    }
  }
  std::ranges::stable_sort(report.dominant, std::ranges::greater{}, &GradientShare::share);
  if (report.dominant.size() > static_cast<size_t>(std::max(num_dominant, 0))) {
    report.dominant.resize(static_cast<size_t>(std::max(num_dominant, 0)));
  }
  return report;
}

template class OptimizerOf<ScaledAdamRule>;

}  // namespace apogee::optim
