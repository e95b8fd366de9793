// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/ring_attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::nn::parallel {
namespace {

using autograd::SavedTensor;

// One step of the ring: which of rank `rank`'s queries attend to which of rank `source`'s keys.
struct RingStep {
  bool causal = false;  // the keys are the rank's own
  int64_t first_query = 0, queries = 0, keys = 0;
  Tensor first_keys;  // of the queries; undefined without documents

  RingStep(const comm::Group& group, int step, int64_t tokens, const DocumentsPtr& documents)
      : queries(tokens), keys(tokens) {
    const int n = group.size(), rank = group.rank(), source = (rank - step + n) % n;
    causal = source == rank;
    if (source < rank) keys = tokens / 2;
    if (source > rank) first_query = queries = tokens / 2;
    if (documents == nullptr) return;
    const auto part = [n](int of) {
      return SequencePart{.rank = of, .size = n, .layout = SequenceLayout::kZigZag};
    };
    first_keys = Queries(documents->FirstKeys(part(rank), part(source)));
  }
  ops::AttentionOptions options() const {
    return {.causal = causal, .wide = true, .first_keys = first_keys};
  }
  Tensor Queries(const Tensor& x) const { return x.Slice(1, first_query, queries); }
  Tensor Keys(const Tensor& x) const { return x.Slice(1, 0, keys); }
  ops::AttentionResult Queries(const ops::AttentionResult& x) const {
    return {Queries(x.out), x.lse.Slice(2, first_query, queries)};
  }
  ops::Qkv Part(const Tensor& q, const Tensor& k, const Tensor& v) const {
    return {Queries(q), Keys(k), Keys(v)};
  }
};

// A buffer that travels around the ring, sent and received in the background.
class RingBuffer {
 public:
  RingBuffer(comm::Group& group, const Tensor& first) : group_(group), now_(first) {}
  const Tensor& now() const { return now_; }
  // Starts sending the current buffer and receiving the next one.
  void Start() {
    const int n = group_.size(), rank = group_.rank();
    next_ = Tensor::EmptyLike(now_);
    sent_ = group_.SendAsync(now_, (rank + 1) % n);
    received_ = group_.RecvAsync(next_, (rank + n - 1) % n);
  }
  void Finish() {
    sent_->Wait();
    received_->Wait();
    now_ = std::move(next_);
  }

 private:
  comm::Group& group_;
  Tensor now_, next_;
  std::shared_ptr<comm::Work> sent_, received_;
};

// k and v, or their gradients, in one buffer [2, B, t, K, d].
Tensor Packed(const Tensor& k, const Tensor& v) {
  const Tensor packed = Tensor::Empty({2, k.numel()}, k.dtype(), k.context());
  packed.Slice(0, 0, 1).View(k.shape()).CopyFrom(k);
  packed.Slice(0, 1, 1).View(v.shape()).CopyFrom(v);
  return packed;
}

Tensor Half(const Tensor& packed, int64_t index, const Shape& shape) {
  return packed.Slice(0, index, 1).View(shape);
}

ops::AttentionResult Forward(const ops::Qkv& qkv, comm::Group& group,
                             const DocumentsPtr& documents) {
  const int n = group.size();
  const int64_t tokens = qkv.q.size(1);
  RingBuffer kv(group, Packed(qkv.k, qkv.v));
  ops::AttentionResult sum;
  for (int s = 0; s < n; ++s) {
    const bool more = s + 1 < n;
    if (more) kv.Start();
    const RingStep step(group, s, tokens, documents);
    const ops::AttentionResult part = ops::AttentionForward(
        step.Part(qkv.q, Half(kv.now(), 0, qkv.k.shape()), Half(kv.now(), 1, qkv.k.shape())),
        step.options());
    // In the first step every query attends at least to itself.
    s == 0 ? static_cast<void>(sum = part) : ops::AttentionMerge(step.Queries(sum), part);
    if (more) kv.Finish();
  }
  return sum;
}

// Adds `part`, a contiguous tensor, to the tokens of `sum` from `first` on.
void AddTokens(const Tensor& sum, int64_t first, const Tensor& part) {
  const Tensor to = sum.Slice(1, first, part.size(1));
  to.CopyFrom(ops::Add(to.Contiguous(), part));
}

class RingAttentionNode : public autograd::Node {
 public:
  RingAttentionNode(const ops::Qkv& qkv, const ops::AttentionResult& forward, comm::GroupPtr group,
                    DocumentsPtr documents)
      : q_(qkv.q),
        k_(qkv.k),
        v_(qkv.v),
        out_(forward.out),
        lse_(forward.lse),
        group_(std::move(group)),
        documents_(std::move(documents)) {}
  const char* name() const override { return "ring_attention"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const ops::Qkv qkv{q_.Take(context), k_.Take(context), v_.Take(context)};
    const ops::AttentionResult forward{out_.Take(context), lse_.Take(context)};
    const Tensor dout = grads[0].Detach().Contiguous();
    const Shape shape = qkv.k.shape();
    const DType dtype = qkv.q.dtype(), wide = ComputeDType(dtype);
    const int n = group_->size();
    const Tensor dq = Tensor::Zeros(qkv.q.shape(), wide, dout.context());
    RingBuffer kv(*group_, Packed(qkv.k, qkv.v));
    RingBuffer dkv(*group_, Tensor::Zeros({2, qkv.k.numel()}, wide, dout.context()));
    for (int s = 0; s < n; ++s) {
      const bool more = s + 1 < n;
      if (more) kv.Start();
      const RingStep step(*group_, s, qkv.q.size(1), documents_);
      const ops::Qkv part = step.Part(qkv.q, Half(kv.now(), 0, shape), Half(kv.now(), 1, shape));
      const ops::Qkv result{Tensor::Empty(part.q.shape(), wide, dout.context()),
                            Tensor::Empty(part.k.shape(), wide, dout.context()),
                            Tensor::Empty(part.k.shape(), wide, dout.context())};
      const ops::AttentionResult seen = step.Queries(forward);
      ops::AttentionBackward(part, {seen.out, seen.lse.Contiguous()}, step.Queries(dout),
                             step.options(), result);
      AddTokens(dq, step.first_query, result.q);
      // The gradients that other ranks have added for these keys arrived during this rank's
      // computation.
      if (s > 0) dkv.Finish();
      AddTokens(Half(dkv.now(), 0, shape), 0, result.k);
      AddTokens(Half(dkv.now(), 1, shape), 0, result.v);
      dkv.Start();
      if (more) kv.Finish();
    }
    dkv.Finish();
    return {Rounded(dq, dtype), Rounded(Half(dkv.now(), 0, shape), dtype),
            Rounded(Half(dkv.now(), 1, shape), dtype)};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&q_, &k_, &v_, &out_, &lse_}) saved->Reset();
  }

 private:
  static Tensor Rounded(const Tensor& x, DType dtype) {
    return x.dtype() == dtype ? x : x.To(dtype);
  }

  SavedTensor q_, k_, v_, out_, lse_;
  comm::GroupPtr group_;
  DocumentsPtr documents_;
};

}  // namespace

Tensor RingAttention(const Tensor& q, const Tensor& k, const Tensor& v, const comm::GroupPtr& group,
                     const DocumentsPtr& documents) {
  APOGEE_CHECK(
      q.rank() == 4 && k.rank() == 4 && q.size(1) == k.size(1) && q.size(1) % 2 == 0,
      "ring attention: needs q and k [batch, tokens, heads, head size] with an even number of "
      "tokens (two pieces of each sequence), got ",
      q.shape(), " and ", k.shape());
  const ops::Qkv qkv{q.Detach(), k.Detach(), v.Detach()};
  ops::AttentionResult forward = Forward(qkv, *group, documents);
  if (forward.out.dtype() != q.dtype()) forward.out = forward.out.To(q.dtype());
  Tensor out = forward.out;
  if (autograd::NeedsGrad({q, k, v})) {
    autograd::Attach(out, std::make_shared<RingAttentionNode>(qkv, forward, group, documents),
                     {q, k, v});
  }
  return out;
}

}  // namespace apogee::nn::parallel
