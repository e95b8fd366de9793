// SPDX-License-Identifier: Apache-2.0

// HybridSequence: the part of HybridParallelPlugin that runs sequence parallelism.
//
//   HybridSequence sequence(options.sp_size, options.sp_mode, options.tp_size);
//   sequence.CheckOptions(errors);
//   sequence.AddProblems(model, plan, optimizer, stage, problems);
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

namespace apogee {

class HybridSequence {
 public:
  HybridSequence(int sp_size, nn::parallel::SequenceMode sp_mode, int tp_size);

  // Appends a line per wrong option.
  void CheckOptions(std::string& errors) const;
  bool is_on() const { return mode_ != nn::parallel::SequenceMode::kNone; }
  // Size of the mesh's axis sp: 1 if the tp group shares sequences.
  int axis_size() const { return is_on() && !uses_tp() ? sp_size_ : 1; }
  bool uses_tp() const { return mode_ == nn::parallel::SequenceMode::kSplitGather; }

  // Appends the reasons why this setup cannot run. `plan` null: there is none.
  void AddProblems(nn::Module& model, const nn::parallel::ParallelPlan* plan,
                   const optim::Optimizer& optimizer, int stage, std::string& problems) const;
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
  int sp_size_;
  nn::parallel::SequenceMode mode_;
  int tp_size_;
  std::unique_ptr<nn::parallel::SequenceParallel> parallel_;
  std::unique_ptr<PartialGradients> partial_;
  const std::shared_ptr<const autograd::GradPlace> place_ =
      std::make_shared<autograd::GradPlace>(autograd::GradPlace{
          .where = "its gradient is this rank's part of a sum over the tp group, which the "
                   "optimizer's step makes; set the plugin's max_norm"});
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_HYBRID_SEQUENCE_H_
