// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/functions.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"

namespace apogee::nn::parallel {
namespace {

using autograd::AttachMap;
using autograd::NeedsGrad;
using autograd::Node;

// The sum over the group, in x's memory if nothing else owns it.
Tensor AllReduced(Tensor x, comm::Group& group) {
  Tensor sum = x.is_contiguous() && x.is_sole_owner() ? x.Detach() : x.Detach().Clone();
  group.AllReduce(sum);
  return sum;
}

Tensor Rounded(const Tensor& sum, DType dtype) {
  return sum.dtype() == dtype ? sum : sum.To(dtype);
}

// Every rank's [.., n] -> [.., size * n].
Tensor Gathered(const Tensor& x_in, comm::Group& group) {
  const Tensor x = x_in.Detach().Contiguous();
  const int64_t size = group.size(), columns = x.size(-1);
  const int64_t rows = columns == 0 ? 0 : x.numel() / columns;
  const Tensor ranks = Tensor::Empty({size, rows, columns}, x.dtype(), x.context());
  group.AllGather(ranks, x);
  Shape shape = x.shape();
  shape.Set(-1, size * columns);
  return ranks.Transpose(0, 1).Contiguous().View(shape);
}

// [.., size * n] -> this rank's slice [.., n].
Tensor OwnSlice(const Tensor& x, const comm::Group& group) {
  const int64_t columns = x.size(-1) / group.size();
  return x.Detach().Slice(-1, group.rank() * columns, columns).Contiguous();
}

}  // namespace

Tensor CopyToGroup(const Tensor& x, const comm::GroupPtr& group) {
  if (group == nullptr || !NeedsGrad({x})) return x;
  Tensor y = x.Detach();
  AttachMap(y, "copy_to_group", x, [group, dtype = autograd::GradDType(x)](Tensor dy) {
    return Rounded(AllReduced(std::move(dy), *group), dtype);
  });
  return y;
}

Tensor SharedCopy::operator()(const Tensor& x) {
  if (group_ == nullptr) return x;
  if (!NeedsGrad({x})) return function_ != nullptr ? function_(x) : x;
  const autograd::Edge& edge = autograd::MetaOf(x)->edge;
  if (const auto copy = copy_.lock(); copy != nullptr && source_.lock() == edge.node &&
                                      output_ == edge.output &&
                                      (function_ == nullptr || value_->defined())) {
    Tensor y = function_ != nullptr ? *value_ : x.Detach();
    autograd::AttachOutput(y, copy, 0);
    return y;
  }
  Tensor y = function_ != nullptr ? function_(x) : CopyToGroup(x, group_);
  source_ = edge.node;
  output_ = edge.output;
  copy_ = autograd::MetaOf(y)->edge.node;
  if (function_ == nullptr) return y;
  value_ = std::make_shared<Tensor>(y.Detach());
  autograd::MetaOf(y)->edge.node->AddPreHook([value = std::weak_ptr(value_)] {
    if (const auto kept = value.lock()) *kept = Tensor();
  });
  return y;
}

Tensor ReduceFromGroup(Tensor x, const comm::GroupPtr& group, std::optional<DType> dtype) {
  const DType result = dtype.value_or(x.dtype());
  if (group == nullptr) return x;
  std::shared_ptr<Node> node;
  if (NeedsGrad({x})) {
    const auto pass_on = [](Tensor dy) { return dy; };
    node = std::make_shared<autograd::MapNode<decltype(pass_on)>>("reduce_from_group", pass_on);
    // Set the edges now: Attach would need x later, and holding it would prevent the sum in place.
    node->set_edges({autograd::EdgeOf(x)});
    node->set_cut(false);
  }
  Tensor y = Rounded(AllReduced(std::move(x), *group), result);
  if (node != nullptr) autograd::AttachOutput(y, node, 0);
  return y;
}

Tensor GatherLastDim(const Tensor& x, const comm::GroupPtr& group) {
  if (group == nullptr) return x;
  APOGEE_CHECK(x.rank() >= 1, "gather_last_dim: a scalar has no last dim");
  Tensor y = Gathered(x, *group);
  Node* node = AttachMap(y, "gather_last_dim", x,
                         [group](const Tensor& dy) { return OwnSlice(dy, *group); });
  if (node != nullptr) node->set_cut(false);
  return y;
}

Tensor SplitLastDim(const Tensor& x, const comm::GroupPtr& group) {
  if (group == nullptr) return x;
  APOGEE_CHECK(x.rank() >= 1 && x.size(-1) % group->size() == 0, "split_last_dim: ", group->size(),
               " ranks do not divide the last dim of ", x.shape());
  Tensor y = OwnSlice(x, *group);
  Node* node =
      AttachMap(y, "split_last_dim", x, [group](const Tensor& dy) { return Gathered(dy, *group); });
  if (node != nullptr) node->set_cut(true);
  return y;
}

}  // namespace apogee::nn::parallel
