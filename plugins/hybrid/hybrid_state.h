// SPDX-License-Identifier: Apache-2.0

// HybridParallelPlugin::State: the members of HybridParallelPlugin (plugins/hybrid_parallel.h).
// Internal.
#ifndef APOGEE_PLUGINS_HYBRID_HYBRID_STATE_H_
#define APOGEE_PLUGINS_HYBRID_HYBRID_STATE_H_

#include <memory>
#include <string>

#include "apogee/nn/parallel/experts/expert_parallel.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/plugins/data_parallel.h"
#include "apogee/plugins/first_step_watch.h"
#include "apogee/plugins/hybrid/hybrid_pipeline.h"
#include "apogee/plugins/hybrid/hybrid_sequence.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/precision.h"

namespace apogee {

struct HybridParallelPlugin::State {
  State(const comm::World& world, const TrainingOptions& training,
        const HybridParallelOptions& options);

  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer);
  Criterion ConfigureCriterion(Criterion criterion);
  void Backward(const Tensor& loss, optim::Optimizer& optimizer);
  PipelineResult ExecutePipeline(const PipelineCall& call);
  Layout LayoutOf(const autograd::Parameter& parameter) const;
  Tensor WholeValue(const autograd::Parameter& parameter) const;
  // Over pp and tp, on ranks of the mesh's columns that have the parameter.
  Tensor WholeOfStages(const autograd::Parameter& parameter) const;
  const comm::Mesh& mesh() const;
  std::string WorldProblem() const;
  void MakeInner();
  // Whether ranks hold only parts of the model.
  bool is_cut() const { return options_.tp_size > 1 || options_.ep_size > 1 || pipeline_.is_on(); }
  int DataRank() const;
  // Sends rows to the ranks that hold their experts, from now on.
  void SpreadExperts(nn::Module& model);
  // Gives the parameter rank 0's value, or none if other ranks hold it. Collective.
  void TakeValue(autograd::Parameter& parameter, const PrecisionPolicy& policy);
  bool IsExpert(const autograd::Parameter& parameter) const {
    return experts_ != nullptr && experts_->IsExpert(parameter);
  }
  void CutIntoStages(nn::Module& model);
  // The part of a parameter that this rank has before the data-parallel axis shards it.
  Layout PartOf(const autograd::Parameter& parameter) const;
  // Binds the view of a parameter that lies on another stage.
  void BindElsewhere(optim::ParamView& view, int64_t cut_multiple);
  // The plugin that runs the data-parallel axis. Throws Error when the world does not fit.
  DataParallelPlugin& inner() const;
  void CheckOptimizer(nn::Module& model, optim::Optimizer& optimizer, std::string& problems) const;

  const comm::World& world_;
  TrainingOptions training_;
  HybridParallelOptions options_;
  std::unique_ptr<comm::Mesh> mesh_;  // null when the world does not fit
  std::unique_ptr<nn::parallel::TensorParallel> parallel_;
  std::unique_ptr<nn::parallel::ExpertParallel> experts_;  // null without ep_size
  HybridPipeline pipeline_;
  HybridSequence sequence_;
  std::unique_ptr<FirstStepWatch> watch_;      // if several ranks train one replica
  std::unique_ptr<DataParallelPlugin> inner_;  // runs the data-parallel axis; null without a mesh
  bool keeps_tokens_cut_ = false;              // the criterion takes this rank's tokens
  bool configured_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_HYBRID_STATE_H_
