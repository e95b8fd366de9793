// SPDX-License-Identifier: Apache-2.0

// HybridSequence: what HybridParallelPlugin does for sequences that ranks hold parts of.
//
//   HybridSequence sequence(options.sp_size, options.sp_mode, options.tp_size);
//   sequence.CheckOptions(errors);
//   sequence.AddProblems(model, plan, optimizer, zero_stage, problems);
//   sequence.Prepare(model, plan, mesh);                         // before parameters are cut
//   sequence.Attach(model, optimizer, mesh, tensor_parallel);    // after the inner plugin
//
// Nothing of it is collective but the steps of an optimizer that has been attached.
#ifndef APOGEE_PLUGINS_HYBRID_SEQUENCE_H_
#define APOGEE_PLUGINS_HYBRID_SEQUENCE_H_

#include <memory>
#include <optional>
#include <string>

#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/sequence_parallel.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/plugins/partial_gradients.h"

namespace apogee {

class HybridSequence {
 public:
  HybridSequence(int sp_size, const std::string& sp_mode, int tp_size);

  // Appends what is wrong with the options, a line each.
  void CheckOptions(std::string& errors) const;
  bool is_on() const { return mode_.has_value(); }
  // The size of the mesh's axis sp: 1 where the tp group shares sequences.
  int axis_size() const { return is_on() && !uses_tp() ? sp_size_ : 1; }
  bool uses_tp() const { return mode_ == nn::parallel::SequenceMode::kSplitGather; }

  // Appends what keeps this setup from running. `plan` null: there is none.
  void AddProblems(nn::Module& model, const nn::parallel::ParallelPlan* plan,
                   const optim::Optimizer& optimizer, int zero_stage, std::string& problems) const;
  // Changes nothing of the model.
  void Prepare(nn::Module& model, const nn::parallel::ParallelPlan& plan, const comm::Mesh& mesh);
  // From now on the model cuts sequences. `tensor_parallel` may be null.
  void Attach(nn::Module& model, optim::Optimizer& optimizer, const comm::Mesh& mesh,
              const nn::parallel::TensorParallel* tensor_parallel);
  // Null: `mean`, of the cross entropy that ignores ignore_index, is right as it is.
  nn::parallel::SequenceParallel::Loss KeepLogitsCut(nn::parallel::SequenceParallel::Loss mean,
                                                     int64_t ignore_index);
  // Null before Prepare.
  const nn::parallel::SequenceParallel* parallel() const { return parallel_.get(); }

 private:
  int sp_size_;
  std::string name_;
  int tp_size_;
  std::optional<nn::parallel::SequenceMode> mode_;
  std::unique_ptr<nn::parallel::SequenceParallel> parallel_;
  std::unique_ptr<PartialGradients> partial_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_SEQUENCE_H_
