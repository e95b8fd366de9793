// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/attention.h"

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"

namespace apogee::autograd {
namespace {

// The three strided views of a packed [B, T, 3 D] buffer.
ops::Qkv Unpack(const Tensor& packed, int64_t num_heads) {
  const int64_t dim = packed.size(2) / 3;
  const Tensor split =
      packed.View({packed.size(0), packed.size(1), 3 * num_heads, dim / num_heads});
  return {split.Slice(2, 0, num_heads), split.Slice(2, num_heads, num_heads),
          split.Slice(2, 2 * num_heads, num_heads)};
}

void CheckPacked(const Tensor& qkv, int64_t num_heads) {
  APOGEE_CHECK(
      qkv.defined() && qkv.rank() == 3 && num_heads > 0 && qkv.size(2) % (3 * num_heads) == 0,
      "packed_attention: needs qkv [batch, tokens, 3 * heads * head size] for ", num_heads,
      " heads, got ", qkv.shape());
}

class AttentionNode : public Node {
 public:
  AttentionNode(const ops::Qkv& qkv, const ops::AttentionResult& forward,
                const AttentionOptions& options)
      : q_(qkv.q), k_(qkv.k), v_(qkv.v), out_(forward.out), lse_(forward.lse), options_(options) {
    if (options.mask.defined()) mask_ = SavedTensor(options.mask);
    options_.mask = Tensor();
  }
  const char* name() const override { return "attention"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const ops::Qkv qkv{q_.Take(context), k_.Take(context), v_.Take(context)};
    const ops::AttentionResult forward{out_.Take(context), lse_.Take(context)};
    const ops::Qkv result{Tensor::EmptyLike(qkv.q), Tensor::EmptyLike(qkv.k),
                          Tensor::EmptyLike(qkv.v)};
    AttentionOptions options = options_;
    if (mask_.defined()) options.mask = mask_.Take(context);
    const Tensor dmask =
        ops::AttentionBackward(qkv, forward, grads[0], options, result, /*wants_dmask=*/wants(3));
    return {result.q, result.k, result.v, dmask};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&q_, &k_, &v_, &out_, &lse_, &mask_}) saved->Reset();
    options_.first_keys = Tensor();
  }

 private:
  SavedTensor q_, k_, v_, out_, lse_, mask_;
  AttentionOptions options_;
};

class PackedAttentionNode : public Node {
 public:
  PackedAttentionNode(const Tensor& packed, int64_t num_heads, const ops::AttentionResult& forward,
                      const AttentionOptions& options)
      : packed_(packed),
        out_(forward.out),
        lse_(forward.lse),
        num_heads_(num_heads),
        options_(options) {}
  const char* name() const override { return "packed_attention"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor packed = packed_.Take(context);
    const ops::AttentionResult forward{out_.Take(context), lse_.Take(context)};
    Tensor result = Tensor::EmptyLike(packed);
    ops::AttentionBackward(Unpack(packed, num_heads_), forward,
                           grads[0].Contiguous().View(forward.out.shape()), options_,
                           Unpack(result, num_heads_));
    return {result};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&packed_, &out_, &lse_}) saved->Reset();
    options_.first_keys = Tensor();
  }

 private:
  SavedTensor packed_, out_, lse_;
  int64_t num_heads_;
  AttentionOptions options_;
};

class UnpackQkvNode : public Node {
 public:
  UnpackQkvNode(const Tensor& packed, int64_t num_heads)
      : Node(3),
        shape_(packed.shape()),
        dtype_(packed.dtype()),
        context_(packed.context()),
        num_heads_(num_heads) {}
  const char* name() const override { return "unpack_qkv"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    const Tensor packed = Tensor::Zeros(shape_, dtype_, context_);
    const ops::Qkv parts = Unpack(packed, num_heads_);
    const Tensor* const to[] = {&parts.q, &parts.k, &parts.v};
    for (size_t i = 0; i < 3; ++i) {
      if (grads[i].defined()) to[i]->CopyFrom(grads[i]);
    }
    return {packed};
  }

 private:
  Shape shape_;
  DType dtype_;
  ContextPtr context_;
  int64_t num_heads_;
};

}  // namespace

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  const ops::Qkv qkv{q.Detach(), k.Detach(), v.Detach()};
  const ops::AttentionResult forward = ops::AttentionForward(qkv, options);
  Tensor out = forward.out;
  if (NeedsGrad({q, k, v, options.mask})) {
    Attach(out, std::make_shared<AttentionNode>(qkv, forward, options), {q, k, v, options.mask});
  }
  return out;
}

ops::Qkv UnpackQkv(const Tensor& qkv, int64_t num_heads) {
  CheckPacked(qkv, num_heads);
  ops::Qkv parts = Unpack(qkv.Detach().Contiguous(), num_heads);
  if (NeedsGrad({qkv})) {
    const auto node = std::make_shared<UnpackQkvNode>(qkv, num_heads);
    Attach(parts.q, node, {qkv});
    AttachOutput(parts.k, node, 1);
    AttachOutput(parts.v, node, 2);
  }
  return parts;
}

Tensor PackedAttention(const Tensor& qkv, int64_t num_heads, const AttentionOptions& options) {
  CheckPacked(qkv, num_heads);
  if (options.mask.defined()) {
    const ops::Qkv parts = UnpackQkv(qkv, num_heads);
    return View(Attention(parts.q, parts.k, parts.v, options),
                {qkv.size(0), qkv.size(1), qkv.size(2) / 3});
  }
  const Tensor packed = qkv.Detach().Contiguous();
  const ops::AttentionResult forward = ops::AttentionForward(Unpack(packed, num_heads), options);
  Tensor out = forward.out.View({packed.size(0), packed.size(1), packed.size(2) / 3});
  if (NeedsGrad({qkv})) {
    Attach(out, std::make_shared<PackedAttentionNode>(packed, num_heads, forward, options), {qkv});
  }
  return out;
}

Tensor Rotary(const Tensor& x, const RotaryOptions& options) {
  Tensor y = ops::Rotary(x, options);
  RotaryOptions back = options;
  back.inverse = !options.inverse;
  AttachMap(y, "rotary", x, [back](const Tensor& dy) { return ops::Rotary(dy, back); });
  return y;
}

}  // namespace apogee::autograd
