// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/sequence_functions.h"

#include <utility>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
namespace {

using autograd::AttachMap;

SequencePart PartOf(const comm::Group& group) {
  return {.rank = group.rank(), .size = group.size()};
}

Shape WithTokens(Shape shape, int64_t tokens) {
  shape.Set(1, tokens);
  return shape;
}

Tensor Scaled(const Tensor& x, double factor) { return factor == 1 ? x : ops::Scale(x, factor); }

// This rank's tokens of the sum of x over the ranks.
Tensor ReducedTokens(const Tensor& x, comm::Group& group, DType dtype) {
  const int64_t tokens = x.size(1) / group.size();
  Tensor input = x.Detach().Contiguous();
  if (x.size(0) > 1) {
    // Order the elements by rank first, then by sample.
    const int64_t piece = input.numel() / x.size(0) / group.size();
    input = input.View({x.size(0), group.size(), piece}).Transpose(0, 1).Contiguous();
  }
  const Tensor sum = Tensor::Empty(WithTokens(x.shape(), tokens), x.dtype(), x.context());
  group.ReduceScatter(sum, input);
  return sum.dtype() == dtype ? sum : sum.To(dtype);
}

}  // namespace

Tensor TokensOf(const Tensor& x, const SequencePart& part) {
  APOGEE_CHECK(x.defined() && x.rank() >= 2, "sequence parallel: needs [samples, tokens, ..]");
  APOGEE_CHECK(x.size(1) % part.divisor() == 0, "sequence parallel: sequences of ", x.size(1),
               " tokens do not divide by ", part.divisor(), ", which ", part.size, " ranks",
               part.num_runs() == 2 ? " with two pieces each" : "", " need; pad or cut them");
  const int64_t tokens = x.size(1) / part.size;
  const Tensor own = Tensor::Empty(WithTokens(x.shape(), tokens), x.dtype(), x.context());
  int64_t begin = 0;
  for (const TokenRun& run : part.Runs(tokens)) {
    own.Slice(1, begin, run.length).CopyFrom(x.Detach().Slice(1, run.first, run.length));
    begin += run.length;
  }
  return own;
}

Tensor WholeTokens(const Tensor& x_in, const SequencePart& part, comm::Group& group) {
  const Tensor x = x_in.Detach().Contiguous();
  const Tensor whole =
      Tensor::Empty(WithTokens(x.shape(), part.Whole(x.size(1))), x.dtype(), x.context());
  if (x.size(0) == 1 && part.num_runs() == 1) {
    group.AllGather(whole, x);
    return whole;
  }
  const Tensor ranks = Tensor::Empty({part.size, x.numel()}, x.dtype(), x.context());
  group.AllGather(ranks, x);
  for (int rank = 0; rank < part.size; ++rank) {
    const Tensor held = ranks.Slice(0, rank, 1).View(x.shape());
    int64_t begin = 0;
    for (const TokenRun& run : SequencePart{rank, part.size, part.layout}.Runs(x.size(1))) {
      whole.Slice(1, run.first, run.length).CopyFrom(held.Slice(1, begin, run.length));
      begin += run.length;
    }
  }
  return whole;
}

Tensor SplitTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                   double factor) {
  Tensor y = TokensOf(x, part);
  AttachMap(y, "split_tokens", x, [part, group, factor](const Tensor& dy) {
    return Scaled(WholeTokens(dy, part, *group), 1 / factor);
  });
  return y;
}

Tensor GatherTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                    double factor) {
  Tensor y = WholeTokens(x, part, *group);
  AttachMap(y, "gather_tokens", x,
            [part, factor](const Tensor& dy) { return Scaled(TokensOf(dy, part), factor); });
  return y;
}

Tensor GatherSequence(const Tensor& x, const comm::GroupPtr& group) {
  Tensor y = WholeTokens(x, PartOf(*group), *group);
  AttachMap(y, "gather_sequence", x, [group, dtype = autograd::GradDType(x)](const Tensor& dy) {
    return ReducedTokens(dy, *group, dtype);
  });
  return y;
}

Tensor ReduceScatterSequence(const Tensor& x, const comm::GroupPtr& group, DType dtype,
                             std::optional<DType> grad_dtype) {
  APOGEE_CHECK(x.rank() >= 2 && x.size(1) % group->size() == 0,
               "sequence parallel: ", group->size(), " ranks do not divide the tokens of ",
               x.shape());
  Tensor y = ReducedTokens(x, *group, dtype);
  autograd::Node* node = AttachMap(
      y, "reduce_scatter_sequence", x, [group, to = grad_dtype.value_or(dtype)](const Tensor& dy) {
        return WholeTokens(dy.dtype() == to ? dy : dy.To(to), PartOf(*group), *group);
      });
  if (node != nullptr) node->set_cut(false);  // the sum of the ranks' columns
  return y;
}

}  // namespace apogee::nn::parallel
