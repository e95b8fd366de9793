// SPDX-License-Identifier: Apache-2.0

// Executor: runs one rank's part of a batch through a pipeline.
//
//   Executor executor({.model = model, .cut = cut, .shape = shape, .group = pp_group});
//   PipelineResult result = executor.Run(call);         // every rank of the group, with one batch
//
// A batch becomes micro-batches of consecutive samples, whose sizes differ by at most one. Outputs
// go to the next stage, and gradients of inputs to the previous stage, while the stage computes;
// its next inputs arrive meanwhile.
//
// Random masks are those of one forward of the whole batch. To number them, a part sends along how
// many random streams the parts so far have drawn, once for each shape.
#ifndef APOGEE_PLUGINS_PIPELINE_EXECUTOR_H_
#define APOGEE_PLUGINS_PIPELINE_EXECUTOR_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/core/trace/trace.h"
#include "apogee/plugins/pipeline/cut.h"
#include "apogee/plugins/pipeline/inbox.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/sharding/backward_passes.h"

namespace apogee::pipeline {

struct ExecutorParts {
  nn::Chain& model;
  const Cut& cut;
  PipelineShape shape;  // num_micros and training are set by each call
  comm::GroupPtr group;
  TraceLane* lane = nullptr;  // gets a span for each operation
};

// A call, and how this rank runs it.
struct ExecutorCall : PipelineCall {
  int num_micros = 1;
  int64_t first_sample = 0;  // of `inputs` in the whole batch; used if they do not say
  double loss_scale = 1;
  BackwardPasses* passes = nullptr;  // null: evaluation
  bool reduce = true;
};

class Executor {
 public:
  using Prepare = std::function<Tensor(const Tensor& inputs)>;
  using Complete = std::function<Tensor(const Tensor& output, const Tensor& inputs)>;

  explicit Executor(const ExecutorParts& parts);
  // Set how the first piece's input is made of a micro-batch's inputs, and how the criterion's
  // input is made of the last piece's output. Null: no change.
  void set_ends(Prepare prepare, Complete complete) {
    prepare_ = std::move(prepare);
    complete_ = std::move(complete);
  }

  // Throws Error for a batch without samples, or with inputs and targets that do not fit.
  // Collective over the group; all ranks must pass the same batch.
  PipelineResult Run(const ExecutorCall& call);
  // The only chunk of this rank that uses the parameter, so that its gradient is complete when that
  // chunk's gradients are. -1: several chunks use it, here or on other stages, or none does.
  int ChunkOf(const autograd::Parameter& parameter) const;

 private:
  // The form of a part's output, for micro-batches of one shape.
  struct Output {
    Shape shape;
    DType dtype = DType::kF32;
    int64_t draws = 0;  // random streams drawn so far
  };
  // The part, the shape of its micro-batch's inputs, and whether the model is in training mode.
  using OutputKey = std::tuple<int, std::vector<int64_t>, bool>;
  // A micro-batch in a chunk, from forward to the end of backward.
  struct Slot {
    std::shared_ptr<autograd::Parameter> input;
    Tensor output;
    Tensor auxiliary;  // the part's own loss; undefined: it has none
    autograd::DeferredWeightGrads deferred;
  };
  struct Running;  // the state of one call

  void RunOp(Running& run, const PipelineOp& op);
  TraceSpan Span(const PipelineOp& op) const;
  void Forward(Running& run, const PipelineOp& op);
  void Backward(Running& run, const PipelineOp& op);
  void Weights(Running& run, const PipelineOp& op);
  void Loss(Running& run, const PipelineOp& op, const Tensor& output, Slot& slot);
  void AuxiliaryLoss(Running& run, const PipelineOp& op, Slot& slot) const;
  void ExpectFor(Running& run, const PipelineOp& op);
  Tensor Take(Running& run, const Message& message);
  void Give(Running& run, const Message& message, const Tensor& tensor);
  void Send(Running& run, const Tensor& tensor, int stage);
  Tensor BufferFor(Running& run, const Message& message, int from, bool may_wait);
  void SendHeader(Running& run, const OutputKey& key, int stage);
  void ReceiveHeader(const OutputKey& key, int from);
  void RunPass(const Running& run, const PipelineOp& op, bool completes_chunk,
               const std::function<void()>& backward) const;
  PipelineResult Finish(Running& run);

  const ExecutorParts parts_;
  const int stage_;
  Prepare prepare_;
  Complete complete_;
  std::vector<std::set<const autograd::Parameter*>> chunk_parameters_;
  std::map<OutputKey, Output> outputs_;
  std::set<OutputKey> headers_sent_;
  int64_t num_runs_ = 0;
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_EXECUTOR_H_
