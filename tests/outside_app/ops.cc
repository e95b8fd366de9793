// SPDX-License-Identifier: Apache-2.0

#include "ops.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "apogee/autograd/saved_tensor.h"

namespace outside {
namespace {

namespace autograd = apogee::autograd;
using apogee::Tensor;

enum class Squash { kSigmoid, kTanh };

template <typename C>
C Squashed(Squash kind, C x) {
  return kind == Squash::kSigmoid ? 1 / (1 + std::exp(-x)) : std::tanh(x);
}

// Of the squashed value.
template <typename C>
C Slope(Squash kind, C y) {
  return kind == Squash::kSigmoid ? y * (1 - y) : 1 - y * y;
}

class SquashNode : public autograd::Node {
 public:
  SquashNode(Squash kind, const Tensor& y) : kind_(kind), y_(y) {}
  const char* name() const override { return "squash"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const Tensor y = y_.Take(context);
    const Tensor dy = grads[0].Detach().Contiguous();
    Tensor dx = Tensor::EmptyLike(y);
    apogee::DispatchFloat(y.dtype(), "squash_backward", [&]<typename T>() {
      using C = apogee::ComputeType<T>;
      const T* from = y.data<T>();
      const T* grad = dy.data<T>();
      T* to = dx.data<T>();
      for (int64_t i = 0; i < y.numel(); ++i) {
        to[i] = T(static_cast<C>(grad[i]) * Slope(kind_, static_cast<C>(from[i])));
      }
    });
    return {dx};
  }
  void ReleaseSaved() override { y_.Reset(); }

 private:
  Squash kind_;
  autograd::SavedTensor y_;
};

Tensor Apply(Squash kind, const Tensor& x) {
  const Tensor in = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(in);
  apogee::DispatchFloat(in.dtype(), "squash", [&]<typename T>() {
    using C = apogee::ComputeType<T>;
    const T* from = in.data<T>();
    T* to = y.data<T>();
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = T(Squashed(kind, static_cast<C>(from[i])));
  });
  if (autograd::NeedsGrad({x})) {
    autograd::Attach(y, std::make_shared<SquashNode>(kind, y), {x});
  }
  return y;
}

class StackNode : public autograd::Node {
 public:
  const char* name() const override { return "stack_tokens"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& /*context*/) override {
    const Tensor dy = grads[0].Detach();
    std::vector<Tensor> parts;
    for (int64_t t = 0; t < dy.size(1); ++t) {
      parts.push_back(dy.Slice(1, t, 1).Clone().View({dy.size(0), dy.size(2)}));
    }
    return parts;
  }
};

}  // namespace

Tensor Sigmoid(const Tensor& x) { return Apply(Squash::kSigmoid, x); }

Tensor Tanh(const Tensor& x) { return Apply(Squash::kTanh, x); }

Tensor StackTokens(const std::vector<Tensor>& tokens) {
  const int64_t batch = tokens[0].size(0), dim = tokens[0].size(1);
  Tensor y = Tensor::Empty({batch, static_cast<int64_t>(tokens.size()), dim}, tokens[0].dtype(),
                           tokens[0].context());
  bool needs_grad = false;
  std::vector<autograd::Edge> edges;
  for (size_t t = 0; t < tokens.size(); ++t) {
    y.Slice(1, static_cast<int64_t>(t), 1)
        .CopyFrom(tokens[t].Detach().Contiguous().View({batch, 1, dim}));
    needs_grad = needs_grad || autograd::NeedsGrad({tokens[t]});
    edges.push_back(autograd::EdgeOf(tokens[t]));
  }
  // As many inputs as there are tokens: Attach takes a list that is known when the code is written.
  if (needs_grad) {
    auto node = std::make_shared<StackNode>();
    node->set_edges(std::move(edges));
    autograd::AttachOutput(y, node, 0);
  }
  return y;
}

}  // namespace outside
