// SPDX-License-Identifier: Apache-2.0

// Differentiable collectives: how tensors enter and leave the part of a graph that the ranks of a
// group compute together.
//
//   Tensor h = autograd::Linear(CopyToGroup(x, group), w1_local, b1_local);   // columns of w1
//   Tensor y = ReduceFromGroup(autograd::Linear(h, w2_local, {}), group);     // rows of w2
//   Tensor logits = GatherLastDim(y_local, group);                   // [.., n] on every rank
//
// Every rank of the group must call the same functions in the same order, with tensors of the same
// shape and dtype, and must run backward through them in the same order. Each call waits for its
// collective. Sums accumulate in f32 (f64 for f64), are rounded once, and have the same bits on
// every rank. Addends may have a wider dtype than the result, so that only the sum is rounded. With
// a null group (one rank) the tensor itself comes back and nothing is recorded.
//
// A "replicated" tensor has the same values on every rank, and so must its gradient: only then is
// the identity the right backward of a sum.
#ifndef APOGEE_NN_PARALLEL_FUNCTIONS_H_
#define APOGEE_NN_PARALLEL_FUNCTIONS_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "apogee/autograd/node.h"
#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// For a replicated x that each rank uses differently. Forward: the identity. Backward: sums the
// gradients over the ranks (one all-reduce of x's elements in the gradients' dtype) and rounds the
// sum to GradDType(x).
Tensor CopyToGroup(const Tensor& x, const comm::GroupPtr& group);

// CopyToGroup for layers that share their input (q, k, v; gate, up). Called with the same tensor
// again while the graph of the first copy lives, it returns that copy: backward then adds the
// layers' gradients first and communicates once. If `copy` is given, it is applied in place of
// CopyToGroup (a gather of sequences, for example); its result is kept until the next call with
// another tensor or until backward has used it.
class SharedCopy {
 public:
  using Function = std::function<Tensor(const Tensor& x)>;
  explicit SharedCopy(comm::GroupPtr group, Function copy = nullptr)
      : group_(std::move(group)), function_(std::move(copy)) {}
  Tensor operator()(const Tensor& x);

 private:
  comm::GroupPtr group_;
  Function function_;                            // null: CopyToGroup
  std::shared_ptr<Tensor> value_;                // of function_
  std::weak_ptr<autograd::Node> source_, copy_;  // where x came from, and its copy
  int output_ = 0;                               // of source_
};

// The sum of x over the ranks (one all-reduce), replicated and rounded to `dtype` (default: x's).
// The backward is the identity. Adds in place if x is moved in and nothing else owns its memory.
Tensor ReduceFromGroup(Tensor x, const comm::GroupPtr& group, std::optional<DType> dtype = {});

// [.., n] on each rank -> [.., size * n] in rank order, replicated (one all-gather). Backward takes
// this rank's slice of the gradient.
Tensor GatherLastDim(const Tensor& x, const comm::GroupPtr& group);

// Replicated [.., size * n] -> this rank's slice [.., n]. Backward gathers the gradients of all
// ranks (one all-gather). Throws Error if the group's size does not divide the last dim.
Tensor SplitLastDim(const Tensor& x, const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_FUNCTIONS_H_
