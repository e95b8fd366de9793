// SPDX-License-Identifier: Apache-2.0

// GraphedMicroStep: runs forward and backward of one micro-batch on a GPU as one CUDA graph, and
// the optimizer's step as another one. The graphs are used from the second batch of the same shapes
// and from the second step on.
//
//   GraphedMicroStep micro_step(booster, boosted.model, boosted.criterion, boosted.optimizer);
//   const Accumulation window = booster.accumulate(batches.size());
//   for (const data::Batch& batch : batches) {           // no criterion(model(..)), no backward
//     micro_step.Run(batch);
//   }
//   micro_step.Step();                                   // instead of boosted.optimizer.step()
//   boosted.optimizer.zero_grad();
//
// Run computes the same bits as the eager lines: the loss, and the parameters' gradients, which it
// writes if they are absent and adds to if they are present.
//
// Batches with the same shapes and the same gradients present form a case. The first batch of a
// case runs eagerly, and the second is captured (tensor/cuda/cuda_graph.h). For each later batch,
// its data is copied into the graph's input, and the graph is launched. A change of frozen
// parameters or of the training mode starts another case. Within a case there is one graph for each
// factor, number of targets that are not ignored, and address of weights and gradients.
//
// Step is optimizer.step(), whose kernels are launched as one graph: the host still computes the
// numbers of the step (learning rate, step counts, options) and gives them to the graph before the
// launch (tensor/cuda/cuda_graph_call.h). So schedules, options that you change, skipped steps and
// listeners work as ever. You may also call optimizer.step() instead, in any step.
//
// Model and criterion must depend only on their arguments, on parameters and on constants. If the
// criterion uses numbers that change from call to call, pass them in the batch or as `factor`.
//
// Each graph keeps the memory of its activations and of the gradients it writes, even after those
// gradients have been made absent. If you still hold such a gradient when the graph is about to
// write the next one, Run throws Error: keep a Clone() of the gradient instead.
//
// Throws Error, before anything has changed, for setups that a graph cannot run exactly:
//   - contexts of the CPU, plugins whose backward cannot be captured, fused backward
//   - hooks on modules or parameters (a trace sets some), dropout
//   - values that the model or the criterion reads on the host, indices that are not the batch's
//   - in Step, optimizers whose host reads what the GPU computes (optim/step/step_in_graph.h)
// A wrong index in a batch gives the Error of the eager run.
#ifndef APOGEE_BOOSTER_GRAPHED_STEP_H_
#define APOGEE_BOOSTER_GRAPHED_STEP_H_

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <vector>

#include "apogee/booster/booster.h"

namespace apogee {

class CudaGraphCall;

struct GraphedMicroStepOptions {
  // Number of graphs to keep, each with its memory. Beyond it the least recently used one is freed.
  int max_graphs = 8;
};

class GraphedMicroStep {
 public:
  // Takes the objects that boost() returned. They must outlive this.
  GraphedMicroStep(Booster& booster, nn::Module& model, Criterion criterion,
                   optim::Optimizer& optimizer, const GraphedMicroStepOptions& options = {});
  ~GraphedMicroStep();
  GraphedMicroStep(const GraphedMicroStep&) = delete;
  GraphedMicroStep& operator=(const GraphedMicroStep&) = delete;

  // `batch` may be on the host, which costs no wait, or on the GPU. Runs backward of the loss times
  // `factor` and, under Booster::accumulate, divided by the number of micro-batches. Returns that
  // product: a scalar on the GPU, outside of any graph, owned by the caller.
  Tensor Run(const data::Batch& batch, double factor = 1);

  // One step of the optimizer, from the gradients that are present.
  void Step();

  // Micro-steps so far, by the way they ran. A captured one is also launched.
  int64_t num_eager() const { return num_eager_; }
  int64_t num_captured() const { return num_captured_; }
  int64_t num_replayed() const { return num_replayed_; }
  // Calls of Step so far that made a graph, and those that launched one that existed.
  int64_t num_step_graphs_made() const;
  int64_t num_step_graphs_reused() const;

 private:
  struct Graph;
  struct Case;

  void CheckSetup() const;
  Case CaseOf(const data::Batch& batch, double factor) const;
  Tensor RunCase(const data::Batch& batch, double factor);
  // Runs forward, criterion and backward; returns the loss.
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
  std::list<std::unique_ptr<Graph>> graphs_;  // most recently used first
  bool has_stepped_ = false;
  std::unique_ptr<CudaGraphCall> step_;
  int64_t num_eager_ = 0, num_captured_ = 0, num_replayed_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_GRAPHED_STEP_H_
