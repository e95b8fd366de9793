// SPDX-License-Identifier: Apache-2.0

// HybridSequence: the part of HybridParallelPlugin that runs sequence parallelism.
//
//   HybridSequence sequence(options);
//   sequence.CheckOptions(errors);
//   sequence.AddProblems(model, plan, optimizer, problems);
//   sequence.Prepare(model, plan, mesh);                         // before parameters are cut
//   sequence.Attach(model, optimizer, mesh, tensor_parallel);    // after the inner plugin
//
// Nothing here is collective except the steps of an attached optimizer.
#ifndef APOGEE_PLUGINS_HYBRID_HYBRID_SEQUENCE_H_
#define APOGEE_PLUGINS_HYBRID_HYBRID_SEQUENCE_H_

#include <memory>
#include <string>

#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/sequence_parallel.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/plugins/hybrid/partial_gradients.h"
#include "apogee/plugins/hybrid_parallel.h"

namespace apogee {

class HybridSequence {
 public:
  // `options` must outlive this.
  explicit HybridSequence(const HybridParallelOptions& options) : options_(options) {}

  // Appends a line per wrong option.
  void CheckOptions(std::string& errors) const;
  bool is_on() const { return options_.sp_mode != nn::parallel::SequenceMode::kNone; }
  // Size of the mesh's axis sp: 1 if the tp group shares sequences.
  int axis_size() const { return is_on() && !uses_tp() ? options_.sp_size : 1; }
  bool uses_tp() const { return options_.sp_mode == nn::parallel::SequenceMode::kSplitGather; }

  // Appends the reasons why this setup cannot run. `plan` null: there is none.
  void AddProblems(nn::Module& model, const nn::parallel::ParallelPlan* plan,
                   const optim::Optimizer& optimizer, std::string& problems) const;
  // Does not change the model.
  void Prepare(nn::Module& model, const nn::parallel::ParallelPlan& plan, const comm::Mesh& mesh);
  // From now on the model cuts sequences. `tensor_parallel` may be null.
  void Attach(nn::Module& model, optim::Optimizer& optimizer, const comm::Mesh& mesh,
              const nn::parallel::TensorParallel* tensor_parallel);
  // Keeps logits cut in training: returns the loss to use in place of `mean`, the cross entropy
  // that ignores ignore_index. Null: `mean` is right as it is.
  nn::parallel::SequenceParallel::Loss KeepLogitsCut(nn::parallel::SequenceParallel::Loss mean,
                                                     int64_t ignore_index);
  // Null before Prepare.
  const nn::parallel::SequenceParallel* parallel() const { return parallel_.get(); }

 private:
  const HybridParallelOptions& options_;
  std::unique_ptr<nn::parallel::SequenceParallel> parallel_;
  std::unique_ptr<PartialGradients> partial_;
  const std::shared_ptr<const autograd::GradPlace> place_ =
      std::make_shared<autograd::GradPlace>(autograd::GradPlace{
          .where = "its gradient is this rank's part of a sum over the tp group, which the "
                   "optimizer's step makes; set the plugin's max_norm"});
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_HYBRID_SEQUENCE_H_
