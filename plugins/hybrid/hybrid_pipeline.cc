// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid/hybrid_pipeline.h"

#include <algorithm>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/plugins/hybrid/elsewhere.h"
#include "apogee/plugins/replicas.h"

namespace apogee {
namespace {

bool ChunksFit(pipeline::ScheduleKind kind, int chunks) {
  if (kind == pipeline::ScheduleKind::k1F1B) return chunks == 1;
  return kind == pipeline::ScheduleKind::kInterleaved ? chunks >= 2 : chunks == 2;
}

}  // namespace

void HybridPipeline::CheckOptions(std::string& errors) const {
  const int stages = options_.pp_size, chunks = options_.num_model_chunks;
  const int64_t micros = options_.num_microbatches, size = options_.microbatch_size;
  const std::string pp_size = "pp_size " + std::to_string(stages);
  if (stages < 1) AddProblem(errors, "pp_size must be at least 1, got ", stages);
  if (stages <= 1) {
    const bool set = options_.schedule != pipeline::ScheduleKind::k1F1B || chunks != 0 ||
                     micros != 0 || size != 0 || !options_.piece_costs.empty() ||
                     !options_.pieces_per_part.empty();
    if (set) {
      AddProblem(errors,
                 "schedule, num_model_chunks, num_microbatches, microbatch_size, piece_costs and "
                 "pieces_per_part need pp_size > 1, got ",
                 stages);
    }
    return;
  }
  if (options_.stage == 3) {
    AddProblem(errors, "stage 3 would gather every parameter anew for each micro-batch; with ",
               pp_size, " it must be 0 to 2");
  }
  if (chunks != 0 && !ChunksFit(options_.schedule, chunks)) {
    AddProblem(errors,
               "num_model_chunks must be 1 for schedule 1f1b, 2 or more for interleaved and 2 for "
               "zbv, got ",
               chunks, " for ", Name(options_.schedule));
  }
  if (micros < 0 || size < 0 || (micros > 0) == (size > 0)) {
    AddProblem(errors, pp_size,
               " needs one of num_microbatches and microbatch_size, positive, got ", micros,
               " and ", size);
  } else if (micros > 0 && micros < stages) {
    AddProblem(errors, "num_microbatches ", micros, " is less than ", pp_size,
               ": at any time some stages would idle");
  }
}

pipeline::PipelineShape HybridPipeline::PartShape() const {
  const pipeline::ScheduleKind kind = options_.schedule;
  const int chunks = kind == pipeline::ScheduleKind::k1F1B ? 1 : 2;
  return {.kind = kind,
          .num_stages = options_.pp_size,
          .num_chunks = options_.num_model_chunks > 0 ? options_.num_model_chunks : chunks};
}

void HybridPipeline::AddProblems(nn::Module& model, std::string& problems) const {
  if (!is_on()) return;
  for (const std::string& problem : pipeline::CutProblems(model, PartShape(), CutOptions())) {
    AddProblem(problems, problem);
  }
}

void HybridPipeline::Cut(nn::Module& model, const comm::World& world, const comm::Mesh& mesh) {
  auto& chain = dynamic_cast<nn::Chain&>(model);
  group_ = mesh.group(comm::Axis::kPp);
  cut_ = std::make_unique<pipeline::Cut>(chain, PartShape(), CutOptions());
  executor_ = std::make_unique<pipeline::Executor>(
      pipeline::ExecutorParts{chain, *cut_, PartShape(), group_, world.lane("compute")});
  stage_ = mesh.coordinate(comm::Axis::kPp);
  for (const autograd::ParameterPtr& buffer : model.Buffers()) {
    DropElsewhere(*buffer, buffer->dtype());
  }
}

void HybridPipeline::DropElsewhere(autograd::Parameter& parameter, DType dtype) {
  const std::vector<int>& holders = cut_->HoldersOf(parameter);
  if (std::ranges::find(holders, stage_) != holders.end()) return;
  DropValue(parameter, dtype,
            internal::Concat("it lies on pipeline stage ", holders[0], ", this is stage ", stage_,
                             "; run the model with booster.execute_pipeline, and if a piece here "
                             "uses the parameter, list it in nn::Piece::tied"));
}

void HybridPipeline::Attach(const nn::Module& model, const comm::World& world) {
  const auto group_of = [&](const std::vector<int>& stages) {
    std::vector<int> ranks;
    for (const int stage : stages) {
      ranks.push_back(group_->world_ranks()[static_cast<size_t>(stage)]);
    }
    return world.NewGroup(ranks);
  };
  gradients_ = std::make_unique<pipeline::StageGradients>(
      model, *cut_, group_of,
      [this](const autograd::Parameter& parameter) { return ChunkOf(parameter) >= 0; });
}

void HybridPipeline::BindEmpty(optim::ParamView& view, LayoutOptions layout, const Shape& shape) {
  view.BindShard(view.parameter()->data(), Layout(shape, std::move(layout)));
  view.parameter()->set_grad_place(elsewhere_);
}

Tensor HybridPipeline::Whole(const autograd::Parameter& parameter, const Shape& shape,
                             const std::function<Tensor()>& here) const {
  const Tensor whole =
      !parameter.is_here()
          ? Tensor::Empty(shape, parameter.dtype(), parameter.context(), MemoryCategory::kParameter)
          : here().Clone();
  group_->Broadcast(whole, cut_->HoldersOf(parameter)[0]);
  return whole;
}

int HybridPipeline::NumMicros(const PipelineCall& call) const {
  const int64_t samples = call.inputs.defined() && call.inputs.rank() > 0 ? call.inputs.size(0) : 0;
  APOGEE_CHECK(samples > 0, "execute_pipeline: the batch has no samples");
  const bool fits =
      call.criterion == nullptr ||
      (call.targets.defined() && call.targets.rank() > 0 && call.targets.size(0) == samples);
  APOGEE_CHECK(fits, "execute_pipeline: inputs have ", samples, " samples, targets ",
               call.targets.defined() ? call.targets.shape().ToString() : "are undefined");
  const bool training = call.optimizer != nullptr;
  APOGEE_CHECK(!training || call.criterion != nullptr,
               "execute_pipeline: training needs a criterion");
  const int64_t wanted = options_.num_microbatches > 0
                             ? options_.num_microbatches
                             : (samples + options_.microbatch_size - 1) / options_.microbatch_size;
  const auto micros = static_cast<int>(std::min(wanted, samples));
  APOGEE_CHECK(!training || has_trained_ || micros >= options_.pp_size,
               "execute_pipeline: ", samples, " samples make ", micros,
               " micro-batches, fewer than the ", options_.pp_size,
               " stages; use larger batches or smaller micro-batches");
  return micros;
}

Tensor HybridPipeline::Evaluate(nn::Module& model, const Tensor& inputs) {
  const Tensor no_targets;
  const Criterion no_criterion;
  const PipelineCall call{.inputs = inputs,
                          .targets = no_targets,
                          .model = model,
                          .criterion = no_criterion,
                          .return_outputs = true};
  Tensor output = executor_->Run({call, /*num_micros=*/1}).outputs;
  const pipeline::PipelineShape shape = PartShape();
  const int root = shape.StageOf(shape.num_parts() - 1);
  // The other stages do not know its dtype and shape.
  std::vector<int64_t> form(2 + Shape::kMaxRank);
  if (output.defined()) {
    output = output.Contiguous();
    form[0] = static_cast<int64_t>(output.dtype());
    form[1] = output.rank();
    std::ranges::copy(output.shape().dims(), form.begin() + 2);
  }
  const ContextPtr context = model.Parameters()[0]->context();
  const Tensor header = Tensor::FromVector<int64_t>(form, {std::ssize(form)}, context);
  group_->Broadcast(header, root);
  form = header.ToVector<int64_t>();
  if (!output.defined()) {
    const std::span<const int64_t> dims(form.begin() + 2, form.begin() + 2 + form[1]);
    output = Tensor::Empty(Shape(dims), static_cast<DType>(form[0]), context);
  }
  group_->Broadcast(output, root);
  return output;
}

PipelineResult HybridPipeline::Run(const PipelineCall& call, BackwardPasses& passes,
                                   const Batch& batch) {
  pipeline::ExecutorCall run{call, NumMicros(call), batch.first_sample, batch.loss_scale};
  if (call.optimizer == nullptr) return executor_->Run(run);
  // Before any stage has sent something: a stage that throws later leaves the others waiting.
  if (call.auxiliary != nullptr) {
    for (const nn::Moe* layer : nn::MoeLayers(call.model)) {
      APOGEE_CHECK(layer->config().balance != nn::BalanceLoss::kHfLayers,
                   "execute_pipeline: mixture of experts \"", layer->full_name(),
                   "\" has the balance hf_layers, which takes the tokens of all layers together, "
                   "and a pipeline stage has those of its own layers only; use micro_batch");
    }
  }
  has_trained_ = true;
  run.passes = &passes;
  run.reduce = passes.BeginBackward();
  gradients_->Begin();
  const PipelineResult result = executor_->Run(run);
  gradients_->End(passes, run.reduce);
  return result;
}

}  // namespace apogee
