// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/all_to_all_attention.h"

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

}  // namespace

Tensor HeadsToTokens(const Tensor& x, const comm::GroupPtr& group) {
  APOGEE_CHECK(x.rank() == 4 && x.size(2) % group->size() == 0,
               "all_to_all attention: ", group->size(), " ranks do not divide the ", x.size(2),
               " heads of ", x.shape());
  Tensor y = ToTokens(x, *group);
  autograd::AttachMap(y, "heads_to_tokens", x,
                      [group](const Tensor& dy) { return ToHeads(dy, *group); });
  return y;
}

Tensor TokensToHeads(const Tensor& x, const comm::GroupPtr& group) {
  Tensor y = ToHeads(x, *group);
  autograd::AttachMap(y, "tokens_to_heads", x,
                      [group](const Tensor& dy) { return ToTokens(dy, *group); });
  return y;
}

Tensor AllToAllAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const comm::GroupPtr& group, const DocumentsPtr& documents,
                         const AttentionCoreOptions& core_options) {
  autograd::AttentionOptions options = KernelOptionsOf(core_options);
  if (documents != nullptr) options.first_keys = documents->FirstKeys({}, {});
  return TokensToHeads(autograd::Attention(HeadsToTokens(q, group), HeadsToTokens(k, group),
                                           HeadsToTokens(v, group), options),
                       group);
}

}  // namespace apogee::nn::parallel
