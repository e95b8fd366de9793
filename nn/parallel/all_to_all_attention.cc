// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/all_to_all_attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/node.h"

namespace apogee::nn::parallel {
namespace {

// x [outer, n, inner] -> [n, outer, inner]: sends slice i of dim 1 to rank i, stacks what comes
// back.
Tensor Exchanged(const Tensor& x, comm::Group& group) {
  const Tensor send = x.Transpose(0, 1).Contiguous();
  const Tensor received = Tensor::EmptyLike(send);
  group.AllToAll(received, send);
  return received;
}

Tensor ToTokens(const Tensor& x_in, comm::Group& group) {
  const Tensor x = x_in.Detach().Contiguous();
  const int64_t n = group.size(), batch = x.size(0), tokens = x.size(1), heads = x.size(2) / n;
  const int64_t row = heads * x.size(3);
  const Tensor received = Exchanged(x.View({batch * tokens, n, row}), group);
  return received.View({n, batch, tokens * row})
      .Transpose(0, 1)
      .Contiguous()
      .View({batch, n * tokens, heads, x.size(3)});
}

Tensor ToHeads(const Tensor& x_in, comm::Group& group) {
  const Tensor x = x_in.Detach().Contiguous();
  const int64_t n = group.size(), batch = x.size(0), tokens = x.size(1) / n, heads = x.size(2);
  const int64_t row = heads * x.size(3);
  const Tensor received = Exchanged(x.View({batch, n, tokens * row}), group);
  return received.View({n, batch * tokens, row})
      .Transpose(0, 1)
      .Contiguous()
      .View({batch, tokens, n * heads, x.size(3)});
}

class ExchangeNode : public autograd::Node {
 public:
  ExchangeNode(comm::GroupPtr group, bool to_tokens)
      : group_(std::move(group)), to_tokens_(to_tokens) {}
  const char* name() const override { return to_tokens_ ? "heads_to_tokens" : "tokens_to_heads"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext&) override {
    return {to_tokens_ ? ToHeads(grads[0], *group_) : ToTokens(grads[0], *group_)};
  }

 private:
  comm::GroupPtr group_;
  bool to_tokens_;
};

}  // namespace

Tensor HeadsToTokens(const Tensor& x, const comm::GroupPtr& group) {
  APOGEE_CHECK(x.rank() == 4 && x.size(2) % group->size() == 0,
               "all_to_all attention: ", group->size(), " ranks do not divide the ", x.size(2),
               " heads of ", x.shape());
  Tensor y = ToTokens(x, *group);
  if (autograd::NeedsGrad({x})) {
    autograd::Attach(y, std::make_shared<ExchangeNode>(group, true), {x});
  }
  return y;
}

Tensor TokensToHeads(const Tensor& x, const comm::GroupPtr& group) {
  Tensor y = ToHeads(x, *group);
  if (autograd::NeedsGrad({x})) {
    autograd::Attach(y, std::make_shared<ExchangeNode>(group, false), {x});
  }
  return y;
}

Tensor AllToAllAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const comm::GroupPtr& group) {
  return TokensToHeads(autograd::Attention(HeadsToTokens(q, group), HeadsToTokens(k, group),
                                           HeadsToTokens(v, group)),
                       group);
}

}  // namespace apogee::nn::parallel
