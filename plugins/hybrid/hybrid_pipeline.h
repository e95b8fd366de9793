// SPDX-License-Identifier: Apache-2.0

// HybridPipeline: the part of HybridParallelPlugin that runs models cut into pipeline stages.
//
//   HybridPipeline pipeline(options);
//   pipeline.CheckOptions(errors);
//   pipeline.AddProblems(model, problems);
//   pipeline.Cut(model, world, mesh);                   // before anything else is cut
//   pipeline.DropElsewhere(*parameter, dtype);          // of every parameter, after SyncValue
//   pipeline.Attach(model, world);                      // after the inner plugin
//   pipeline.Run(call, passes, {.loss_scale = scale, .first_sample = first});
//
// Cut, Attach, Whole, Run and Evaluate are collective.
#ifndef APOGEE_PLUGINS_HYBRID_HYBRID_PIPELINE_H_
#define APOGEE_PLUGINS_HYBRID_HYBRID_PIPELINE_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/mesh.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/pipeline/executor.h"
#include "apogee/plugins/pipeline/stage_gradients.h"

namespace apogee {

class HybridPipeline {
 public:
  // `options` must outlive this.
  explicit HybridPipeline(const HybridParallelOptions& options) : options_(options) {}

  // Appends a line per wrong option.
  void CheckOptions(std::string& errors) const;
  bool is_on() const { return options_.pp_size > 1; }
  int size() const { return options_.pp_size; }
  // Appends the reasons why the model cannot be cut in this way.
  void AddProblems(nn::Module& model, std::string& problems) const;

  // Decides which stage uses which parameters, and drops buffers of other stages. The mesh must
  // outlive this object.
  void Cut(nn::Module& model, const comm::World& world, const comm::Mesh& mesh);
  // Makes the parameter an empty tensor of `dtype` if this rank's stage does not use it.
  void DropElsewhere(autograd::Parameter& parameter, DType dtype);
  // Sets how the first piece's input is made of a micro-batch, and how the criterion's input is
  // made of the last piece's output.
  void set_ends(pipeline::Executor::Prepare prepare, pipeline::Executor::Complete complete) {
    executor_->set_ends(std::move(prepare), std::move(complete));
  }
  void Attach(const nn::Module& model, const comm::World& world);
  // The number of stages that have a copy of the parameter.
  int NumHolders(const autograd::Parameter& parameter) const {
    return is_on() ? static_cast<int>(cut_->HoldersOf(parameter).size()) : 1;
  }
  // The model's output for the whole batch, as one micro-batch, on every stage.
  Tensor Evaluate(nn::Module& model, const Tensor& inputs);
  // As Executor::ChunkOf.
  int ChunkOf(const autograd::Parameter& parameter) const { return executor_->ChunkOf(parameter); }
  // Makes `view`, whose parameter is on another stage, an empty shard of `layout`'s tensor.
  void BindEmpty(optim::ParamView& view, LayoutOptions layout, const Shape& shape);
  // Returns the whole value on every stage. A stage that has the parameter calls `here` for it.
  Tensor Whole(const autograd::Parameter& parameter, const Shape& shape,
               const std::function<Tensor()>& here) const;

  struct Batch {
    double loss_scale = 1;
    int64_t first_sample = 0;
  };
  // Throws Error if inputs and targets do not fit each other or the schedule. Evaluations do not
  // use `passes`.
  PipelineResult Run(const PipelineCall& call, BackwardPasses& passes, const Batch& batch);
  // Null before Cut.
  const pipeline::Cut* cut() const { return cut_.get(); }

 private:
  pipeline::PipelineShape PartShape() const;
  pipeline::CutOptions CutOptions() const {
    return {.piece_costs = options_.piece_costs, .pieces_per_part = options_.pieces_per_part};
  }
  int NumMicros(const PipelineCall& call) const;

  const HybridParallelOptions& options_;
  comm::GroupPtr group_;  // this rank's stages
  std::unique_ptr<pipeline::Cut> cut_;
  std::unique_ptr<pipeline::Executor> executor_;
  int stage_ = 0;
  std::unique_ptr<pipeline::StageGradients> gradients_;
  // Of the gradients of other stages' parameters.
  const std::shared_ptr<const autograd::GradPlace> elsewhere_ =
      std::make_shared<autograd::GradPlace>(autograd::GradPlace{
          .where = "it lies on another pipeline stage; set the plugin's max_norm"});
  bool has_trained_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_HYBRID_PIPELINE_H_
