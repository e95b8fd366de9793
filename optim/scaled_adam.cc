#include "apogee/optim/scaled_adam.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apogee/optim/check_options.h"
#include "apogee/optim/median_clipping.h"
#include "apogee/optim/stat_values.h"

namespace apogee::optim {
namespace {

constexpr StateSpec kStates[] = {
    {"delta", StateKind::kElementwise},     {"exp_avg_sq", StateKind::kElementwise},
    {"param_rms", StateKind::kScalar},      {"scale_exp_avg_sq", StateKind::kScalar},
    {"scale_grad_sum", StateKind::kScalar}, {"scale_grad_sumsq", StateKind::kScalar}};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsScalar(const ParamView& view) { return view.layout().logical_shape().numel() == 1; }

// A state of one number, in the parameter's compute dtype.
class Number {
 public:
  Number(const ParamView& view, const char* name) : tensor_(view.state(name)) {}
  double get() const { return tensor_.Item(); }
  void set(double value) { tensor_.Fill(value); }

 private:
  Tensor tensor_;
};

}  // namespace

// Of one parameter, loss scale and model-wide clip factor applied.
struct ScaledAdam::Sums {
  double weight_grad, grad_squares, weight_squares;
};

ScaledAdamOptions ScaledAdamOptions::Icefall() { return {.none_as_zero = true}; }
ScaledAdamOptions ScaledAdamOptions::Icefall2023() {
  return {.none_as_zero = true, .icefall_2023 = true};
}

std::vector<std::string> ScaledAdamOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.AtLeastZero("clipping_scale", clipping_scale);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.AtLeastZero("scalar_lr_scale", scalar_lr_scale);
  problems.AtLeastZero("eps", eps);
  problems.Positive("param_min_rms", param_min_rms);
  problems.Positive("param_max_rms", param_max_rms);
  if (param_min_rms > param_max_rms) {
    problems.Add(internal::Concat("param_min_rms is ", param_min_rms,
                                  ", must be at most param_max_rms, ", param_max_rms));
  }
  problems.Positive("scalar_max", scalar_max);
  if (size_update_period < 1) {
    problems.Add(
        internal::Concat("size_update_period is ", size_update_period, ", must be at least 1"));
  }
  if (clipping_update_period < 4) {
    problems.Add(internal::Concat("clipping_update_period is ", clipping_update_period,
                                  ", must be at least 4 for quartiles to make sense"));
  }
  return problems.list();
}

std::vector<OptionField<ScaledAdamOptions>> ScaledAdamOptions::Fields() {
  using O = ScaledAdamOptions;
  return {{"lr", &O::lr},
          {"clipping_scale", &O::clipping_scale},
          {"betas", &O::betas},
          {"scalar_lr_scale", &O::scalar_lr_scale},
          {"eps", &O::eps},
          {"param_min_rms", &O::param_min_rms},
          {"param_max_rms", &O::param_max_rms},
          {"scalar_max", &O::scalar_max},
          {"size_update_period", &O::size_update_period},
          {"clipping_update_period", &O::clipping_update_period},
          {"none_as_zero", &O::none_as_zero},
          {"icefall_2023", &O::icefall_2023}};
}

ScaledAdam::ScaledAdam(std::vector<ParamGroup<ScaledAdamOptions>> groups)
    : TypedOptimizer("scaled_adam", std::move(groups)), last_(static_cast<size_t>(num_groups())) {}

std::span<const StateSpec> ScaledAdam::StatesUnder(const ParamView& view,
                                                   const ScaledAdamOptions&) const {
  return std::span<const StateSpec>(kStates).first(IsScalar(view) ? 2 : 6);
}

absl::Status ScaledAdam::CheckGroupState(const GroupState& state, const OptionMap& saved) const {
  ScaledAdamOptions options;
  APOGEE_RETURN_IF_ERROR(SetOptions(saved, name(), options));
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

void ScaledAdam::DeclareStats(int, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, 3);
}

void ScaledAdam::ComputeStats(int, std::span<const ActiveParam> params,
                              const StepDecision& decision, std::span<const StatBuffer>,
                              StatBuffer& buffer) {
  std::vector<double> values(3 * params.size());
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<DotChunk> chunks;
    std::vector<size_t> owners;
    for (size_t i = 0; i < params.size(); ++i) {
      const ActiveParam& param = params[i];
      ParamView& view = *param.view;
      if (view.compute_dtype() != dtype) continue;
      const ScaledAdamOptions& o = options(param.group);
      const int64_t t = view.step();
      const bool size_step = t == 0 || t % o.size_update_period == o.size_update_period - 1;
      if (IsScalar(view) && o.clipping_scale == 0) continue;
      chunks.push_back({view.master().raw(), param.grad.raw(), param.grad.dtype(),
                        view.layout().local_numel(), size_step || o.clipping_scale > 0, 0, 0, 0});
      owners.push_back(i);
    }
    if (chunks.empty()) continue;
    const DeviceContext& context = *params[0].grad.context();
    OptimKernelsFor(context).dots(context, {dtype, chunks});
    const double scale = decision.grad_scale();
    for (size_t k = 0; k < chunks.size(); ++k) {
      const ParamView& view = *params[owners[k]].view;
      const double replicas = view.layout().num_replicas();
      double* sums = values.data() + buffer.sum_entries()[owners[k]].offset;
      sums[0] = scale * chunks[k].weight_grad / replicas;
      sums[1] = scale * scale * chunks[k].grad_squares / replicas;
      sums[2] = chunks[k].weight_squares / replicas;
    }
  }
  WriteStats(buffer, StatSection::kSums, values);
}

double ScaledAdam::ClipFactor(int group, std::span<const ActiveParam> params,
                              std::span<const Sums> sums) {
  const ScaledAdamOptions& o = options(group);
  LastStep& last = last_[static_cast<size_t>(group)];
  last = {};
  if (o.clipping_scale == 0) return 1;
  double total = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamView& view = *params[i].view;
    const bool scalar = IsScalar(view);
    const double rms = scalar ? std::sqrt(sums[i].weight_squares) : Number(view, "param_rms").get();
    const double factor = !scalar ? rms : o.icefall_2023 ? 1 : o.scalar_lr_scale;
    last.shares.push_back({view.name(), factor * factor * sums[i].grad_squares,
                           std::sqrt(sums[i].grad_squares), rms});
    total += last.shares.back().share;
  }
  last.norm = std::sqrt(total);
  MedianClipping clipping(mutable_group_state(group),
                          {o.clipping_scale, o.clipping_update_period, !o.icefall_2023});
  return last.factor = clipping.Next(last.norm);
}

void ScaledAdam::Update(int group, std::span<const ActiveParam> params,
                        const StepDecision& decision, std::span<const StatBuffer> totals) {
  const ScaledAdamOptions& o = options(group);
  const StatBuffer& buffer = totals[0];
  const auto first =
      std::ranges::find(buffer.sum_entries(), params[0].view, &StatBuffer::Entry::view);
  const std::vector<double> numbers = ReadStats(buffer, StatSection::kSums);
  std::vector<Sums> sums;
  for (size_t i = 0; i < params.size(); ++i) {
    const double* values = numbers.data() + (first + static_cast<std::ptrdiff_t>(i))->offset;
    sums.push_back({values[0], values[1], values[2]});
    const ParamView& view = *params[i].view;
    if (!IsScalar(view) && view.step() == 1) {
      const auto numel = static_cast<double>(view.layout().logical_shape().numel());
      Number(view, "param_rms").set(std::sqrt(values[2] / numel));
    }
  }
  const double clip = ClipFactor(group, params, sums);

  const double one_minus_beta1 = 1 - o.betas[0];
  const auto make_chunk = [&](const ActiveParam& param) {
    const ParamView& view = *param.view;
    const Sums& sum = sums[static_cast<size_t>(&param - params.data())];
    const int64_t t = view.step() - 1;
    ScaledAdamChunk chunk = MakeUpdateChunk<ScaledAdamChunk>(param);
    chunk.delta = view.state("delta").raw();
    chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
    const double correction = 1 - std::pow(o.betas[1], static_cast<double>(t + 1));
    const bool always = o.icefall_2023 && IsScalar(view);
    chunk.v_scale = correction < 0.99 || always ? 1 / correction : 1;
    if (IsScalar(view)) {
      chunk.step_size = -o.lr * o.scalar_lr_scale * one_minus_beta1;
      chunk.limit = o.scalar_max;
      return chunk;
    }
    chunk.limit = kInfinity;

    const int64_t period = o.size_update_period;
    Number rms(view, "param_rms"), grad_sum(view, "scale_grad_sum"),
        grad_sumsq(view, "scale_grad_sumsq");
    const double grad =
        clip == 0 ? 0 : clip * sum.weight_grad;  // what an infinite gradient made is dropped
    const bool first_of_period = t % period == 0;
    grad_sum.set((first_of_period ? 0 : grad_sum.get()) + grad);
    grad_sumsq.set((first_of_period ? 0 : grad_sumsq.get()) + grad * grad);
    if (t % period == period - 1) {
      rms.set(std::sqrt(sum.weight_squares /
                        static_cast<double>(view.layout().logical_shape().numel())));
      if (t > 0) {
        Number average(view, "scale_exp_avg_sq");
        const double beta = std::pow(o.betas[1], static_cast<double>(period));
        average.set(beta * average.get() +
                    (1 - beta) * grad_sumsq.get() / static_cast<double>(period));
        const double k = static_cast<double>((t + 1) / period);
        const double size_lr = o.lr * o.scalar_lr_scale;
        double change = -size_lr * std::sqrt(1 - std::pow(beta, k)) * grad_sum.get() /
                        (std::sqrt(average.get()) + o.eps);
        const double r = rms.get();
        if (r < o.param_min_rms) change = 0;
        if (o.icefall_2023) {
          if (r > o.param_max_rms) change = -size_lr * static_cast<double>(period);
        } else {
          change = std::clamp(change, -0.1, 0.1);
          if (r > 0) change = std::min(change, (o.param_max_rms - r) / r);
        }
        chunk.growth = one_minus_beta1 * change;
      }
    }
    chunk.step_size = -o.lr * one_minus_beta1 * std::max(rms.get(), o.param_min_rms);
    return chunk;
  };
  const double grad_scale = decision.grad_scale() * (o.icefall_2023 && clip != 0 ? 1 : clip);
  ForEachComputeDType<ScaledAdamChunk>(
      params, make_chunk, [&](DType dtype, std::span<const ScaledAdamChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        OptimKernelsFor(context).scaled_adam(
            context, {dtype, grad_scale, o.betas[0], o.betas[1], o.eps, o.icefall_2023, chunks});
      });
}

ClippingReport ScaledAdam::Clipping(int group, int num_dominant) const {
  const LastStep& last = last_[static_cast<size_t>(group)];
  const GroupState& state = group_state(group);
  ClippingReport report;
  report.norm = last.norm;
  report.factor = last.factor;
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
  report.dominant = last.shares;
  const bool finite = std::isfinite(last.norm);
  const auto broken = static_cast<double>(std::ranges::count_if(
      last.shares, [](const GradientShare& share) { return !std::isfinite(share.share); }));
  for (GradientShare& share : report.dominant) {
    if (finite) {
      share.share = last.norm > 0 ? share.share / (last.norm * last.norm) : 0;
    } else {  // what is not finite dominates everything else
      share.share = std::isfinite(share.share) ? 0 : 1 / broken;
    }
  }
  std::ranges::stable_sort(report.dominant, std::ranges::greater{}, &GradientShare::share);
  if (report.dominant.size() > static_cast<size_t>(std::max(num_dominant, 0))) {
    report.dominant.resize(static_cast<size_t>(std::max(num_dominant, 0)));
  }
  return report;
}

}  // namespace apogee::optim
