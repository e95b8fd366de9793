// SPDX-License-Identifier: Apache-2.0

#include "blocks.h"

#include <cmath>
#include <vector>

#include "ops.h"

namespace outside {

namespace autograd = apogee::autograd;
namespace nn = apogee::nn;
using apogee::Tensor;

GruBlock::GruBlock(int64_t dim)
    : dim_(dim),
      norm_(Register("norm", std::make_shared<nn::RmsNorm>(dim))),
      from_input_(Register("ih", std::make_shared<nn::Linear>(dim, 3 * dim))),
      from_hidden_(Register("hh", std::make_shared<nn::Linear>(dim, 3 * dim))) {}

Tensor GruBlock::Forward(const Tensor& x) {
  const int64_t batch = x.size(0);
  const Tensor inputs = (*from_input_)((*norm_)(x));
  Tensor h = Tensor::Zeros({batch, dim_}, x.dtype(), x.context());
  std::vector<Tensor> hidden;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const Tensor in =
        autograd::View(autograd::Contiguous(autograd::Slice(inputs, 1, t, 1)), {batch, 3 * dim_});
    const std::vector<Tensor> now = autograd::Split(in, 3, -1);
    const std::vector<Tensor> past = autograd::Split((*from_hidden_)(h), 3, -1);
    const Tensor r = Sigmoid(autograd::Add(now[0], past[0]));
    const Tensor z = Sigmoid(autograd::Add(now[1], past[1]));
    const Tensor n = autograd::Tanh(autograd::Add(now[2], autograd::Mul(r, past[2])));
    h = autograd::Add(n, autograd::Mul(z, autograd::Sub(h, n)));
    hidden.push_back(h);
  }
  return autograd::Add(x, autograd::Stack(hidden, 1));
}

WindowAttention::WindowAttention(int64_t dim, int64_t heads, int64_t window)
    : head_dim_(dim / heads),
      window_(window),
      norm_(Register("norm", std::make_shared<nn::RmsNorm>(dim))),
      q_(Register("q", std::make_shared<nn::Linear>(dim, dim, nn::LinearOptions{.bias = false}))),
      k_(Register("k", std::make_shared<nn::Linear>(dim, dim, nn::LinearOptions{.bias = false}))),
      v_(Register("v", std::make_shared<nn::Linear>(dim, dim, nn::LinearOptions{.bias = false}))),
      o_(Register("o", std::make_shared<nn::Linear>(dim, dim))) {}

Tensor WindowAttention::Forward(const Tensor& x) {
  const int64_t tokens = x.size(1);
  const Tensor y = (*norm_)(x);
  const Tensor q = Heads((*q_)(y)), k = Heads((*k_)(y)), v = Heads((*v_)(y));
  Tensor scores = autograd::Scale(autograd::MatMul(q, k, false, true),
                                  1 / std::sqrt(static_cast<double>(head_dim_)));
  scores = autograd::Softmax(autograd::Add(scores, Mask(tokens, x)));
  Tensor out = autograd::Contiguous(autograd::Transpose(autograd::MatMul(scores, v), 1, 2));
  out = autograd::View(out, {x.size(0), tokens, out.size(2) * head_dim_});
  return autograd::Add(x, (*o_)(out));
}

Tensor WindowAttention::Heads(const Tensor& x) const {
  const Tensor split = autograd::View(x, {x.size(0), x.size(1), x.size(-1) / head_dim_, head_dim_});
  return autograd::Contiguous(autograd::Transpose(split, 1, 2));
}

Tensor WindowAttention::Mask(int64_t tokens, const Tensor& like) const {
  std::vector<double> mask;
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t j = 0; j < tokens; ++j) {
      mask.push_back(j > i || j + window_ <= i ? -1e30 : 0.0);
    }
  }
  return Tensor::FromVector<double>(mask, {tokens, tokens}, like.context(), like.dtype());
}

MlpBlock::MlpBlock(int64_t dim, double dropout)
    : norm_(Register("norm", std::make_shared<nn::RmsNorm>(dim))),
      up_(Register(
          "up", std::make_shared<nn::Linear>(
                    dim, 4 * dim, nn::LinearOptions{.activation = apogee::Activation::kGeluTanh}))),
      drop_(Register("drop", std::make_shared<nn::Dropout>(dropout))),
      down_(Register("down", std::make_shared<nn::Linear>(4 * dim, dim))) {}

Tensor MlpBlock::Forward(const Tensor& x) {
  return autograd::Add(x, (*down_)((*drop_)((*up_)((*norm_)(x)))));
}

}  // namespace outside
