// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/activation.h"

#include <algorithm>

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

class ActivationNode : public Node {
 public:
  ActivationNode(Activation kind, const Tensor& x) : kind_(kind), x_(x) {}
  const char* name() const override { return "activation"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor x = x_.Take(context);
    return {ops::ActivationBackward(kind_, x, std::move(grads[0]))};
  }
  void ReleaseSaved() override { x_.Reset(); }

 private:
  Activation kind_;
  SavedTensor x_;
};

class GatedNode : public Node {
 public:
  GatedNode(Activation kind, const Tensor& gate, const Tensor& up)
      : kind_(kind), gate_(gate), up_(up) {}
  const char* name() const override { return "gated"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor gate = gate_.Take(context), up = up_.Take(context);
    ops::GatedGrads result = ops::GatedBackward(kind_, gate, up, grads[0]);
    return {result.dgate, result.dup};
  }
  void ReleaseSaved() override {
    gate_.Reset();
    up_.Reset();
  }

 private:
  Activation kind_;
  SavedTensor gate_, up_;
};

class SoftmaxNode : public Node {
 public:
  SoftmaxNode(const Tensor& y, bool log) : y_(y), log_(log) {}
  const char* name() const override { return log_ ? "log_softmax" : "softmax"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::SoftmaxBackward(y_.Take(context), grads[0], log_)};
  }
  void ReleaseSaved() override { y_.Reset(); }

 private:
  SavedTensor y_;
  bool log_;
};

Tensor SoftmaxOver(const Tensor& x, int dim, bool log) {
  dim = x.shape().Normalize(dim);
  if (dim != x.rank() - 1) {
    return Contiguous(Transpose(SoftmaxOver(Transpose(x, dim, -1), -1, log), dim, -1));
  }
  Tensor y = ops::SoftmaxForward(x, log);
  if (NeedsGrad({x})) Attach(y, std::make_shared<SoftmaxNode>(y, log), {x});
  return y;
}

// The elements of a random stream that mask an activation.
struct DropoutMask {
  double p;
  PhiloxKey key;
  int64_t first;       // element
  int64_t row_stride;  // between rows of the last dim
  SequencePart tokens;
};

Tensor Masked(const Tensor& x, const DropoutMask& mask) {
  if (mask.tokens.is_whole()) return ops::Dropout(x, mask.p, mask.key, mask.first, mask.row_stride);
  // In the stream, the rows of a token follow each other, and so do the tokens of a run. `token` is
  // the number of the stream's elements per token.
  const int64_t num_tokens = x.size(1);
  const int64_t width = std::max<int64_t>(x.size(-1), 1);
  const int64_t token =
      x.numel() / width / std::max<int64_t>(x.size(0) * num_tokens, 1) * mask.row_stride;
  Tensor y = Tensor::EmptyLike(x);
  for (int64_t sample = 0; sample < x.size(0); ++sample) {
    const int64_t sample_first = mask.first + sample * mask.tokens.Whole(num_tokens) * token;
    int64_t begin = 0;
    for (const TokenRun& run : mask.tokens.Runs(num_tokens)) {
      const auto part = [&](const Tensor& t) {
        return t.Detach().Slice(0, sample, 1).Slice(1, begin, run.length);
      };
      part(y).CopyFrom(ops::Dropout(part(x), mask.p, mask.key, sample_first + run.first * token,
                                    mask.row_stride));
      begin += run.length;
    }
  }
  return y;
}

}  // namespace

Tensor Activate(Activation kind, const Tensor& x) {
  Tensor y = ops::ActivationForward(kind, x);
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<ActivationNode>(kind, x.Detach().Contiguous()), {x});
  }
  return y;
}

Tensor Gated(Activation kind, const Tensor& gate, const Tensor& up, bool recompute) {
  Tensor y = ops::GatedForward(kind, gate, up);
  if (NeedsGrad({gate, up})) {
    Attach(y, std::make_shared<GatedNode>(kind, gate.Detach(), up.Detach()), {gate, up});
    if (recompute) {
      const auto saved = std::make_shared<SavedTensor>(up);
      SetOrigin(y, gate, [kind, saved](const Tensor& of_gate) {
        return ops::GatedForward(kind, of_gate, saved->Take({.keep_saved = true}));
      });
    }
  }
  return y;
}

Tensor Softmax(const Tensor& x, int dim) { return SoftmaxOver(x, dim, false); }

Tensor LogSoftmax(const Tensor& x, int dim) { return SoftmaxOver(x, dim, true); }

Tensor Dropout(const Tensor& x, double p, Generator& generator, const ColumnWindow& columns,
               const SequencePart& tokens) {
  APOGEE_CHECK(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
  if (p == 0) return x;
  APOGEE_CHECK(x.defined() && x.rank() >= 1 && x.size(0) > 0,
               "dropout: x needs a first (sample) dim");
  APOGEE_CHECK(columns.total != 0 || !IsCut(x), "dropout: x ", x.shape(),
               " holds only this rank's columns of an activation that a tensor-parallel group "
               "shares, so its mask would be wrong; use an nn::Dropout, which a rule of the plan "
               "can name (ParallelStyle::kDropout), or say which columns these are "
               "(autograd::ColumnWindow)");
  const int64_t width = x.size(-1), total = columns.total == 0 ? width : columns.total;
  APOGEE_CHECK(
      (x.rank() > 1 || total == width) && columns.first >= 0 && columns.first <= total - width,
      "dropout: columns [", columns.first, ", ", columns.first + width, ") of ", x.shape(),
      " are not within rows of ", total);
  APOGEE_CHECK(tokens.is_whole() || (x.rank() > 2 && x.size(1) % tokens.num_runs() == 0),
               "dropout: a part of each sequence needs x [samples, tokens, ..], got ", x.shape());
  const int64_t rows = x.numel() / std::max<int64_t>(width, 1);  // of all samples
  const int64_t sample = x.rank() == 1 ? 1 : rows / x.size(0) * total;
  DropoutMask mask{.p = p,
                   .key = generator.Next(),
                   .first = generator.first_sample() * sample * tokens.size + columns.first,
                   .row_stride = total,
                   .tokens = tokens};
  Tensor y = Masked(x, mask);
  AttachMap(y, "dropout", x, [mask](const Tensor& dy) { return Masked(dy, mask); });
  return y;
}

}  // namespace apogee::autograd
