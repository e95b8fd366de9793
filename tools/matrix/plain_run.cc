#include "apogee/tools/matrix/plain_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/plugins/precision.h"
#include "apogee/tensor/make_context.h"
#include "apogee/tools/matrix/optimizers.h"
#include "apogee/tools/matrix/plugins.h"

namespace apogee::tools {
namespace {

constexpr double kF32Bound = 1e-5;
constexpr double kF64Bound = 1e-9;
// Times what reordering the sums of the one-rank run changes.
constexpr double kNoiseFactor = 10;
constexpr Reordering kReorderings[] = {{1, 1, 1}, {2, 3, 3}, {3, 4, 1.5},   {4, 9, 1.25},
                                       {5, 2, 3}, {6, 6, 1}, {7, 12, 1.75}, {8, 3, 1.1}};
// Whatever the noise: an update that did not happen has an error of 1.
constexpr double kLargestBound = 0.9;
// What one 8-bit code more or less changes in the update of its element. It happens in a few runs
// of a hundred, so the runs that measure noise mostly miss it.
constexpr double kOneCode = 0.1;
// What one sign more or less changes for Lion, which steps by signs alone: two of an element's
// twenty steps. As rare.
constexpr double kOneSign = 0.1;
// What rounding the weights once, to parts of `unit`, changes, as a part of an update that is not
// 0.
double WeightRounding(double unit, const std::vector<double>& start,
                      const std::vector<double>& end) {
  double weight = 0, update = 0;
  for (size_t i = 0; i < end.size(); ++i) {
    weight += end[i] * end[i];
    update += (end[i] - start[i]) * (end[i] - start[i]);
  }
  return unit * std::sqrt(weight / update);
}

// What a sign that turns around changes, as a part of an update, if some element moved the same way
// in every step.
double SignChange(const std::vector<double>& start, const std::vector<double>& end) {
  double largest = 0, update = 0;
  for (size_t i = 0; i < end.size(); ++i) {
    largest = std::max(largest, std::abs(end[i] - start[i]));
    update += (end[i] - start[i]) * (end[i] - start[i]);
  }
  return kOneSign * largest / std::sqrt(update);
}

Weights MastersOf(optim::Optimizer& optimizer, Weights weights) {
  for (optim::ParamView& view : optimizer.views()) {
    if (view.trainable()) weights[view.name()] = view.master().ToVector<double>();
  }
  return weights;
}

Reference MakeReference(const Cell& cell) {
  Reference reference{PlainRun(cell, {}), {}};
  const Weights& start = reference.plain.start;
  const Weights& end = reference.plain.end;
  const bool exact = cell.precision == "f64" || FindWorkload(cell.workload).has_exact_means();
  // f32's, or bf16's where the weights themselves are all there is.
  const double unit = cell.precision == "bf16" && !HasMasters(cell) ? 0x1p-9 : 0x1p-24;
  for (const auto& [name, values] : end) {
    double& bound = reference.bounds[name];
    if (exact) {
      bound = cell.precision == "f64" ? kF64Bound : kF32Bound;
    } else if (values != start.at(name)) {
      // Also where the few runs below happen to agree to the last bit.
      bound = kNoiseFactor * WeightRounding(unit, start.at(name), values);
      const auto numel = static_cast<double>(values.size());
      if (reference.plain.has_codes) bound = std::max(bound, kOneCode / std::sqrt(numel));
      // The signs that turn around come in pairs: the momentum remembers.
      if (cell.optimizer == "lion") bound = std::max(bound, 2 * SignChange(start.at(name), values));
    }
  }
  if (exact) return reference;
  for (const Reordering& order : kReorderings) {
    for (const auto& [name, noise] : UpdateErrors(start, end, PlainRun(cell, order).end)) {
      double& bound = reference.bounds[name];
      bound = std::min(std::max(bound, kNoiseFactor * noise), kLargestBound);
    }
  }
  return reference;
}

}  // namespace

DType InitialDType(const std::string& precision) {
  return precision == "f64" ? DType::kF64 : DType::kF32;
}

bool HasMasters(const Cell& cell) {
  const bool rounds = cell.precision == "bf16" || cell.precision == "fp16";
  return rounds && FindPlugin(cell.plugin).master_weights;
}

PlainResult PlainRun(const Cell& cell, const Reordering& order) {
  const Workload& workload = FindWorkload(cell.workload);
  const ContextPtr context =
      ValueOrThrow(MakeContext(ValueOrThrow(ParseDevice(cell.device)).For(0)));
  const std::unique_ptr<nn::Module> model = workload.MakeModel();
  model->Initialize(context, {.seed = kSeed, .dtype = InitialDType(cell.precision)});
  PlainResult result{.start = WeightsOf(*model), .end = {}};
  const std::unique_ptr<optim::Optimizer> optimizer =
      MakeMatrixOptimizer(cell.optimizer, workload, *model);
  std::string errors;
  ApplyPrecision(ParsePrecision(cell.precision, errors), *model, *optimizer);
  if (!HasMasters(cell)) {
    for (optim::ParamView& view : optimizer->views()) {
      view.set_keep_master(false);
      view.DropTemporaries();
    }
  }
  const bool fp16 = cell.precision == "fp16";
  optim::LossScaler scaler(kLossScaler);
  for (int64_t step = 0; step < kNumSteps; ++step) {
    const double loss_scale = order.scale * (fp16 ? scaler.scale() : 1);
    optimizer->set_step_options(
        {.max_norm = cell.clip ? workload.max_norm() : 0, .loss_scale = loss_scale});
    const int64_t count = workload.num_samples() / order.num_micro_batches;
    for (int64_t micro = 0; micro < order.num_micro_batches; ++micro) {
      Tensor loss = workload.Loss(
          {*model, context, workload.criterion()},
          {.step = step, .first = micro * count, .count = count, .permutation = order.permutation});
      if (order.num_micro_batches > 1) {
        loss = autograd::Scale(loss, 1.0 / static_cast<double>(order.num_micro_batches));
      }
      if (fp16 && step == kOverflowStep) loss = autograd::Scale(loss, kOverflowFactor);
      autograd::Backward(loss,
                         {.grad = Tensor::Full(loss.shape(), loss.dtype(), loss_scale, context)});
    }
    optimizer->step();
    scaler.Update(optimizer->last_step().skip);
    optimizer->zero_grad();
  }
  result.has_codes = HasCodes(*optimizer);
  result.num_skipped = optimizer->num_skipped_steps();
  APOGEE_CHECK(result.num_skipped == (fp16 ? 1 : 0), "the plain run skipped ", result.num_skipped,
               " steps");
  result.end = WeightsOf(*model);
  if (HasMasters(cell)) result.end = MastersOf(*optimizer, std::move(result.end));
  return result;
}

const Reference& ReferenceCache::Get(const Cell& cell) {
  const std::string key = cell.optimizer + "/" + cell.precision +
                          (HasMasters(cell) ? "/masters" : "") + (cell.clip ? "/clip/" : "/") +
                          cell.workload;
  const auto found = references_.find(key);
  if (found != references_.end()) return found->second;
  return references_.emplace(key, MakeReference(cell)).first->second;
}

}  // namespace apogee::tools
