// SPDX-License-Identifier: Apache-2.0

// GraphedMicroStep: forward and backward of one micro-batch, started on a GPU as one CUDA graph
// from the second time on that the same shapes come.
//
//   GraphedMicroStep micro_step(booster, boosted.model, boosted.criterion, boosted.optimizer);
//   for (const data::Batch& batch : window) {            // no criterion(model(..)), no backward
//     Tensor loss = micro_step.Run(batch, 1.0 / window.size());
//   }
//   boosted.optimizer.step();
//   boosted.optimizer.zero_grad();
//
// Run computes what the eager lines compute, bit for bit: the loss and the parameters' gradients,
// written where they are absent and added where they are present. Batches of one shape, with the
// same gradients present, are a case. The first of a case runs eagerly, the second is captured
// (tensor/cuda/cuda_graph.h), later ones copy the batch into the graph and launch it. Other frozen
// parameters, and the other training mode, are cases of their own. Within one, a graph is made for
// every factor, number of targets that are not ignored, and place of weights and gradients.
//
// Model and criterion must be functions of their arguments, of parameters and of constants; a
// criterion whose numbers change from call to call takes them from the batch, or from `factor`.
//
// Each graph keeps the memory of its activations and of the gradients it writes. So gradients that
// have been made absent still take theirs, and a handle on one that is kept while the next is to be
// written is refused: Clone() it.
//
// Throws Error, and nothing has changed, for what a graph cannot do exactly: contexts of the CPU,
// plugins other than single_rank, fused backward, hooks on modules or parameters (a trace is
// some), dropout, values read on the host, indices that are not the batch's. A wrong index in a
// batch is the Error of the eager run.
#ifndef APOGEE_BOOSTER_GRAPHED_STEP_H_
#define APOGEE_BOOSTER_GRAPHED_STEP_H_

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <vector>

#include "apogee/booster/booster.h"

namespace apogee {

struct GraphedMicroStepOptions {
  // Graphs that are kept, each with its memory; beyond it the one that was not used for longest
  // goes.
  int max_graphs = 8;
};

class GraphedMicroStep {
 public:
  // What boost() returned; they must outlive this. After boost.
  GraphedMicroStep(Booster& booster, nn::Module& model, Criterion criterion,
                   optim::Optimizer& optimizer, const GraphedMicroStepOptions& options = {});
  ~GraphedMicroStep();
  GraphedMicroStep(const GraphedMicroStep&) = delete;
  GraphedMicroStep& operator=(const GraphedMicroStep&) = delete;

  // The batch may be on the host, which costs no wait, or on the GPU. Returns the loss times
  // `factor`, of which backward is taken: a scalar on the GPU, outside of any graph, the caller's.
  Tensor Run(const data::Batch& batch, double factor = 1);

  // Micro-steps so far, by how they ran; captured ones are launched, too.
  int64_t num_eager() const { return num_eager_; }
  int64_t num_captured() const { return num_captured_; }
  int64_t num_replayed() const { return num_replayed_; }

 private:
  struct Graph;
  struct Case;

  void CheckSetup() const;
  Case CaseOf(const data::Batch& batch, double factor) const;
  // Forward, criterion and backward: the loss.
  Tensor Compute(const Tensor& inputs, const Tensor& targets, double factor) const;
  std::unique_ptr<Graph> Capture(const data::Batch& batch, const Case& of) const;
  Tensor Replay(Graph& graph, const data::Batch& batch) const;

  Booster& booster_;
  nn::Module& model_;
  Criterion criterion_;
  optim::Optimizer& optimizer_;
  GraphedMicroStepOptions options_;
  std::vector<autograd::ParameterPtr> parameters_;
  ContextPtr context_;
  std::set<std::vector<int64_t>> seen_;       // cases that ran eagerly
  std::list<std::unique_ptr<Graph>> graphs_;  // the last used first
  int64_t num_eager_ = 0, num_captured_ = 0, num_replayed_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_GRAPHED_STEP_H_
