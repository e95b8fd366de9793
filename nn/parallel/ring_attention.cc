// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/ring_attention.h"

#include <cstdlib>
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

// What the steps of one call share.
struct RingCall {
  comm::GroupPtr group;
  DocumentsPtr documents;  // null: neither documents nor a window
  AttentionCoreOptions options;
};

// One step of the ring: which of rank `rank`'s queries attend to which of rank `source`'s keys.
struct RingStep {
  bool causal = false;  // the keys are the rank's own
  int64_t first_query = 0, queries = 0, keys = 0;
  bool sees_keys = true;  // not if all keys are before every query's window
  Tensor first_keys;      // of the queries; undefined without documents
  AttentionCoreOptions core;

  RingStep(const RingCall& call, int step, int64_t tokens)
      : queries(tokens), keys(tokens), core(call.options) {
    const int n = call.group->size(), rank = call.group->rank(), source = (rank - step + n) % n;
    const int64_t window = core.window, piece = tokens / 2;
    causal = source == rank;
    if (source < rank) keys = piece;
    if (source > rank) first_query = queries = piece;
    // Between the nearest key and its query are |source - rank| - 1 pieces.
    sees_keys = window == 0 || (std::abs(source - rank) - 1) * piece + 1 < window;
    if (call.documents == nullptr || !sees_keys) return;
    const auto part = [n](int of) {
      return SequencePart{.rank = of, .size = n, .layout = SequenceLayout::kZigZag};
    };
    first_keys = Queries(call.documents->FirstKeys(part(rank), part(source), window));
  }
  ops::AttentionOptions options() const {
    ops::AttentionOptions options = KernelOptionsOf(core);
    options.causal = causal;
    options.wide = true;
    options.window = 0;  // first_keys has it: tokens here are not neighbours
    options.first_keys = first_keys;
    return options;
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

ops::AttentionResult Forward(const ops::Qkv& qkv, const RingCall& call) {
  const int n = call.group->size();
  const int64_t tokens = qkv.q.size(1);
  RingBuffer kv(*call.group, Packed(qkv.k, qkv.v));
  ops::AttentionResult sum;
  for (int s = 0; s < n; ++s) {
    const bool more = s + 1 < n;
    if (more) kv.Start();
    const RingStep step(call, s, tokens);
    if (step.sees_keys) {
      const ops::AttentionResult part = ops::AttentionForward(
          step.Part(qkv.q, Half(kv.now(), 0, qkv.k.shape()), Half(kv.now(), 1, qkv.k.shape())),
          step.options());
      // In the first step every query attends at least to itself.
      s == 0 ? static_cast<void>(sum = part) : ops::AttentionMerge(step.Queries(sum), part);
    }
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
  RingAttentionNode(const ops::Qkv& qkv, const ops::AttentionResult& forward, RingCall call)
      : q_(qkv.q),
        k_(qkv.k),
        v_(qkv.v),
        out_(forward.out),
        lse_(forward.lse),
        call_(std::move(call)) {}
  const char* name() const override { return "ring_attention"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const ops::Qkv qkv{q_.Take(context), k_.Take(context), v_.Take(context)};
    const ops::AttentionResult forward{out_.Take(context), lse_.Take(context)};
    const Tensor dout = grads[0].Detach().Contiguous();
    const Shape shape = qkv.k.shape();
    const DType dtype = qkv.q.dtype(), wide = ComputeDType(dtype);
    const int n = call_.group->size();
    const Tensor dq = Tensor::Zeros(qkv.q.shape(), wide, dout.context());
    RingBuffer kv(*call_.group, Packed(qkv.k, qkv.v));
    RingBuffer dkv(*call_.group, Tensor::Zeros({2, qkv.k.numel()}, wide, dout.context()));
    for (int s = 0; s < n; ++s) {
      const bool more = s + 1 < n;
      if (more) kv.Start();
      const RingStep step(call_, s, qkv.q.size(1));
      ops::Qkv result;
      if (step.sees_keys) {
        const ops::Qkv part = step.Part(qkv.q, Half(kv.now(), 0, shape), Half(kv.now(), 1, shape));
        result = {Tensor::Empty(part.q.shape(), wide, dout.context()),
                  Tensor::Empty(part.k.shape(), wide, dout.context()),
                  Tensor::Empty(part.k.shape(), wide, dout.context())};
        const ops::AttentionResult seen = step.Queries(forward);
        ops::AttentionBackward(part, {seen.out, seen.lse.Contiguous()}, step.Queries(dout),
                               step.options(), result);
        AddTokens(dq, step.first_query, result.q);
      }
      // The gradients that other ranks have added for these keys arrived during this rank's
      // computation.
      if (s > 0) dkv.Finish();
      if (step.sees_keys) {
        AddTokens(Half(dkv.now(), 0, shape), 0, result.k);
        AddTokens(Half(dkv.now(), 1, shape), 0, result.v);
      }
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
  RingCall call_;
};

}  // namespace

Tensor RingAttention(const Tensor& q, const Tensor& k, const Tensor& v, const comm::GroupPtr& group,
                     const DocumentsPtr& documents, const AttentionCoreOptions& options) {
  APOGEE_CHECK(
      q.rank() == 4 && k.rank() == 4 && q.size(1) == k.size(1) && q.size(1) % 2 == 0,
      "ring attention: needs q and k [batch, tokens, heads, head size] with an even number of "
      "tokens (two pieces of each sequence), got ",
      q.shape(), " and ", k.shape());
  APOGEE_CHECK(options.causal,
               "ring attention: needs causal attention; without it use AllToAllAttention");
  RingCall call{group, documents, options};
  if (documents == nullptr && options.window > 0) {
    call.documents =
        std::make_shared<autograd::Documents>(q.size(0), q.size(1) * group->size(), q.context());
  }
  const ops::Qkv qkv{q.Detach(), k.Detach(), v.Detach()};
  ops::AttentionResult forward = Forward(qkv, call);
  if (forward.out.dtype() != q.dtype()) forward.out = forward.out.To(q.dtype());
  Tensor out = forward.out;
  if (autograd::NeedsGrad({q, k, v})) {
    autograd::Attach(out, std::make_shared<RingAttentionNode>(qkv, forward, std::move(call)),
                     {q, k, v});
  }
  return out;
}

}  // namespace apogee::nn::parallel
