#include "apogee/optim/adafactor.h"

#include <cmath>

#include "apogee/optim/check_options.h"

namespace apogee::optim {
namespace {

constexpr StateSpec kFactored[] = {{"exp_avg_sq_row", StateKind::kRow},
                                   {"exp_avg_sq_col", StateKind::kColumn},
                                   {"exp_avg", StateKind::kElementwise}};
constexpr StateSpec kFull[] = {{"exp_avg_sq", StateKind::kElementwise},
                               {"exp_avg", StateKind::kElementwise}};

double Beta2(const AdafactorOptions& o, int64_t step) {
  return 1 - std::pow(static_cast<double>(step), o.decay_rate);
}

double RelativeRate(const AdafactorOptions& o, int64_t step) {
  const auto t = static_cast<double>(step);
  if (o.torch_style) return std::min(o.lr, 1 / std::sqrt(t));
  if (!o.relative_step) return o.lr;
  return std::min(o.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
}

// eps[0] in the roles that the two styles give it.
struct Floors {
  double added = 0;
  double mean_floor = 0;
  double limit = std::numeric_limits<double>::infinity();  // of one over the root
};
Floors FloorsOf(const AdafactorOptions& o, DType dtype) {
  if (!o.torch_style) return {.added = o.eps[0]};
  const double machine = dtype == DType::kF64
                             ? std::numeric_limits<double>::epsilon()
                             : static_cast<double>(std::numeric_limits<float>::epsilon());
  const double eps = o.eps[0] > 0 ? o.eps[0] : machine;
  return {.mean_floor = eps, .limit = 1 / eps};
}

}  // namespace

AdafactorOptions AdafactorOptions::Torch() {
  return {.lr = 1e-2, .eps = {0, 1e-3}, .relative_step = false, .torch_style = true};
}

std::vector<std::string> AdafactorOptions::Problems() const {
  OptionProblems problems;
  if (relative_step && !std::isnan(lr)) {
    problems.Add(internal::Concat("lr is ", lr,
                                  " together with relative_step, which computes the rate; "
                                  "set relative_step=false to use lr"));
  }
  if (!relative_step && std::isnan(lr)) problems.Add("relative_step=false needs lr");
  if (!std::isnan(lr)) problems.AtLeastZero("lr", lr);
  if (warmup_init && !relative_step) problems.Add("warmup_init needs relative_step");
  torch_style ? problems.AtLeastZero("eps[0]", eps[0]) : problems.Positive("eps[0]", eps[0]);
  problems.AtLeastZero("eps[1]", eps[1]);
  problems.Positive("clip_threshold", clip_threshold);
  problems.Finite("decay_rate", decay_rate);
  if (decay_rate > 0)
    problems.Add(internal::Concat("decay_rate is ", decay_rate, ", must be at most 0"));
  problems.Decay("beta1", beta1);
  problems.AtLeastZero("weight_decay", weight_decay);
  if (torch_style && relative_step) problems.Add("torch_style needs relative_step=false");
  if (torch_style && beta1 != 0) problems.Add("torch_style has no beta1");
  return problems.list();
}

std::vector<OptionField<AdafactorOptions>> AdafactorOptions::Fields() {
  return {{"lr", &AdafactorOptions::lr},
          {"eps", &AdafactorOptions::eps},
          {"clip_threshold", &AdafactorOptions::clip_threshold},
          {"decay_rate", &AdafactorOptions::decay_rate},
          {"beta1", &AdafactorOptions::beta1},
          {"weight_decay", &AdafactorOptions::weight_decay},
          {"scale_parameter", &AdafactorOptions::scale_parameter},
          {"relative_step", &AdafactorOptions::relative_step},
          {"warmup_init", &AdafactorOptions::warmup_init},
          {"torch_style", &AdafactorOptions::torch_style}};
}

double Adafactor::lr(int group) const {
  return options(group).relative_step ? 0 : options(group).lr;
}

void Adafactor::set_lr(int group, double lr) {
  if (!options(group).relative_step) {
    mutable_options(group).lr = lr;
    return;
  }
  APOGEE_CHECK(
      lr == 0, "optimizer adafactor: a learning rate of ", lr,
      " was set, but relative_step computes the rate; set relative_step=false and give lr to "
      "use a schedule");
}

std::span<const StateSpec> Adafactor::StatesUnder(const ParamView& view,
                                                  const AdafactorOptions& options) const {
  const std::span<const StateSpec> all =
      IsFactored(view) ? std::span<const StateSpec>(kFactored) : std::span<const StateSpec>(kFull);
  return options.beta1 != 0 ? all : all.first(all.size() - 1);
}

// Phase 0: row and column sums of g^2, sum of w^2. Phase 1: sum of u^2.
void Adafactor::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == 0) work_.Prepare(params);
  for (const ActiveParam& param : params) {
    const int64_t scale = options(param.group).scale_parameter ? 1 : 0;
    buffer.AddSums(*param.view, phase == 0 ? NumFactors(*param.view) + scale : 1);
  }
}

void Adafactor::ComputeFactors(int group, std::span<const ActiveParam> params, size_t first,
                               int64_t ahead, bool store, const StatBuffer& totals) {
  const AdafactorOptions& o = options(group);
  std::vector<ActiveParam> factored;
  std::vector<size_t> entries;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!IsFactored(*params[i].view)) continue;
    factored.push_back(params[i]);
    entries.push_back(first + i);
  }
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = entries[static_cast<size_t>(&param - factored.data())];
    FactorChunk chunk =
        work_.Moments(param, entry, "exp_avg_sq_row", "exp_avg_sq_col", SumsAt(totals, entry));
    chunk.beta2 = Beta2(o, param.view->step() + ahead);
    return chunk;
  };
  ForEachComputeDType<FactorChunk>(
      factored, make_chunk, [&](DType dtype, std::span<const FactorChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const Floors floors = FloorsOf(o, dtype);
        OptimKernelsFor(context).factor_moments(
            context, {dtype, totals.dtype(), floors.added, floors.mean_floor, store, chunks});
      });
}

void Adafactor::ComputeStats(int phase, std::span<const ActiveParam> all,
                             const StepDecision& decision, std::span<const StatBuffer> totals,
                             StatBuffer& buffer) {
  ForEachGroup(all, [&](int group, size_t first, std::span<const ActiveParam> params) {
    const AdafactorOptions& o = options(group);
    if (phase == 1) ComputeFactors(group, params, first, /*ahead=*/1, /*store=*/false, totals[0]);
    const auto make_chunk = [&](const ActiveParam& param) {
      const size_t entry = first + static_cast<size_t>(&param - params.data());
      FactoredChunk chunk = work_.Chunk(param, entry);
      chunk.beta2 = Beta2(o, param.view->step() + 1);
      chunk.sums = SumsAt(buffer, entry);
      return chunk;
    };
    ForEachComputeDType<FactoredChunk>(
        params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
          const DeviceContext& context = *params[0].grad.context();
          if (phase == 0) {
            OptimKernelsFor(context).adafactor_square_sums(
                context, {dtype, buffer.dtype(), decision.grad_scale(), o.scale_parameter, chunks});
          } else {
            const Floors floors = FloorsOf(o, dtype);
            OptimKernelsFor(context).adafactor_update_sum(
                context,
                {dtype, buffer.dtype(), decision.grad_scale(), floors.added, floors.limit, chunks});
          }
        });
  });
}

void Adafactor::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                       std::span<const StatBuffer> totals) {
  const AdafactorOptions& o = options(group);
  const size_t first = EntryOf(totals[0], params[0]);
  ComputeFactors(group, params, first, /*ahead=*/0, /*store=*/true, totals[0]);
  const auto make_chunk = [&](const ActiveParam& param) {
    const size_t entry = first + static_cast<size_t>(&param - params.data());
    FactoredChunk chunk = work_.Chunk(param, entry);
    const int64_t step = param.view->step();
    chunk.beta2 = Beta2(o, step);
    chunk.lr = RelativeRate(o, step);
    chunk.update_sum = SumsAt(totals[1], entry);
    if (o.scale_parameter) chunk.weight_sum = SumsAt(totals[0], entry, NumFactors(*param.view));
    return chunk;
  };
  ForEachComputeDType<FactoredChunk>(
      params, make_chunk, [&](DType dtype, std::span<const FactoredChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const Floors floors = FloorsOf(o, dtype);
        OptimKernelsFor(context).adafactor(
            context,
            {dtype, totals[0].dtype(), decision.grad_scale(), floors.added, floors.limit,
             o.clip_threshold, o.eps[1], o.beta1, o.weight_decay * (o.torch_style ? o.lr : 1),
             /*decay_by_alpha=*/!o.torch_style, chunks});
      });
}

}  // namespace apogee::optim
