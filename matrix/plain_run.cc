// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/plain_run.h"

#include <memory>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/matrix/optimizers.h"
#include "apogee/matrix/plugins.h"
#include "apogee/optim/step/loss_scaler.h"
#include "apogee/plugins/precision.h"
#include "apogee/tensor/make_context.h"

namespace apogee::matrix {
namespace {

Weights MastersOf(optim::Optimizer& optimizer, Weights weights) {
  for (optim::ParamView& view : optimizer.views()) {
    if (view.trainable()) weights[view.name()] = view.master().ToVector<double>();
  }
  return weights;
}

}  // namespace

DType InitialDType(const std::string& precision) {
  return precision == "f64" ? DType::kF64 : DType::kF32;
}

bool HasMasters(const Cell& cell) {
  const bool rounds = cell.precision == "bf16" || cell.precision == "fp16";
  return rounds && cell.catalog->FindPlugin(cell.plugin).master_weights;
}

PlainResult PlainRun(const Cell& cell, const Reordering& order) {
  const Workload& workload = cell.catalog->FindWorkload(cell.workload);
  const ContextPtr context =
      ValueOrThrow(MakeContext(ValueOrThrow(ParseDevice(cell.device)).For(0)));
  const std::unique_ptr<nn::Module> model = workload.MakePlainModel();
  model->Initialize(context, {.seed = kSeed, .dtype = InitialDType(cell.precision)});
  PlainResult result{.start = WeightsOf(*model), .end = {}};
  const std::unique_ptr<optim::Optimizer> optimizer = MakeMatrixOptimizer(cell, *model);
  ApplyPrecision(DTypeOf(ValueOrThrow(ParsePrecision(cell.precision))), *model, *optimizer);
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
    const int64_t num_micro_batches =
        cell.shares_micro_batches() ? cell.num_shared_micro_batches() : order.num_micro_batches;
    const int64_t count = workload.num_samples() / num_micro_batches;
    for (int64_t micro = 0; micro < num_micro_batches; ++micro) {
      Tensor loss = workload.Loss({*model, context, workload.criterion()},
                                  {.step = step,
                                   .first = micro * count,
                                   .count = count,
                                   .permutation = order.permutation,
                                   .ignoring_window = cell.ignored ? count : 0});
      if (num_micro_batches > 1) {
        loss = autograd::Scale(loss, 1.0 / static_cast<double>(num_micro_batches));
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

}  // namespace apogee::matrix
