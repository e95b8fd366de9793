// SPDX-License-Identifier: Apache-2.0

// Differentiable collectives: how a tensor enters and leaves a part of the graph that the ranks of
// a group compute together.
//
//   Tensor h = autograd::Linear(CopyToGroup(x, group), w1_local, b1_local);   // columns of w1
//   Tensor y = ReduceFromGroup(autograd::Linear(h, w2_local, {}), group);     // rows of w2
//   Tensor logits = GatherLastDim(y_local, group);                   // [.., n] on every rank
//
// Every rank of the group must call the same functions in the same order, with tensors of one shape
// and dtype, and must run backward through them alike. Collectives are waited for. Sums are the
// group's: in f32 (f64 for f64), rounded once, the same bits on every rank; addends may be wider
// than the result, so that they are not rounded before. A null group is one rank: the tensor itself
// comes back and nothing is recorded.
//
// "Replicated" tensors hold the same values on every rank, and so must their gradients: that is
// what makes identity the right backward of a sum.
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

// Replicated x, used differently by each rank: identity; backward adds the ranks' gradients (one
// all-reduce of x's elements in the gradients' dtype) and rounds the sum to x's dtype.
Tensor CopyToGroup(const Tensor& x, const comm::GroupPtr& group);

// CopyToGroup for layers that share their input (q, k, v; gate, up): asked for the same tensor
// again while the first copy's graph lives, it gives that copy, so that backward adds their
// gradients first and communicates once. With `copy`, of what that makes of x instead (a gather of
// sequences); the result is kept until the next one, or until backward has used it.
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

// The sum over the ranks of x, replicated (one all-reduce), rounded to `dtype` (default x's);
// backward is the identity. Adds in place when x is moved in and nothing else owns it.
Tensor ReduceFromGroup(Tensor x, const comm::GroupPtr& group, std::optional<DType> dtype = {});

// The dtype of addends of tensors of `dtype`: f32 for bf16 and f16.
DType AddendDType(DType dtype);

// [.., n] on each rank -> [.., size * n] in rank order, replicated (one all-gather); backward takes
// this rank's slice of the gradient.
Tensor GatherLastDim(const Tensor& x, const comm::GroupPtr& group);

// Replicated [.., size * n] -> this rank's slice [.., n]; backward gathers the ranks' gradients
// (one all-gather). Throws Error when the size does not divide the last dim.
Tensor SplitLastDim(const Tensor& x, const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_FUNCTIONS_H_
