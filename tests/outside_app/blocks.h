// SPDX-License-Identifier: Apache-2.0

// The residual blocks of the language model: a GRU, attention over a window, an MLP.
//
//   auto block = Register("gru", std::make_shared<GruBlock>(dim));
//   x = (*block)(x);   // [B, T, dim] -> [B, T, dim]
#ifndef OUTSIDE_APP_BLOCKS_H_
#define OUTSIDE_APP_BLOCKS_H_

#include <cstdint>
#include <memory>

#include "apogee/apogee.h"

namespace outside {

// x + GRU(norm(x)), the recurrence written out token by token (Cho et al., 2014; PyTorch's gates).
class GruBlock : public apogee::nn::Module {
 public:
  explicit GruBlock(int64_t dim);
  apogee::Tensor Forward(const apogee::Tensor& x) override;

 private:
  int64_t dim_;
  std::shared_ptr<apogee::nn::RmsNorm> norm_;
  std::shared_ptr<apogee::nn::Linear> from_input_, from_hidden_;
};

// x + attention(norm(x)); a token sees itself and the window - 1 tokens before it.
class WindowAttention : public apogee::nn::Module {
 public:
  WindowAttention(int64_t dim, int64_t heads, int64_t window);
  apogee::Tensor Forward(const apogee::Tensor& x) override;

 private:
  // [B, T, heads * head_dim] -> [B, heads, T, head_dim], of as many heads as this rank has.
  apogee::Tensor Heads(const apogee::Tensor& x) const;
  apogee::Tensor Mask(int64_t tokens, const apogee::Tensor& like) const;

  int64_t head_dim_, window_;
  std::shared_ptr<apogee::nn::RmsNorm> norm_;
  std::shared_ptr<apogee::nn::Linear> q_, k_, v_, o_;
};

// x + down(dropout(gelu(up(norm(x))))).
class MlpBlock : public apogee::nn::Module {
 public:
  MlpBlock(int64_t dim, double dropout);
  apogee::Tensor Forward(const apogee::Tensor& x) override;

 private:
  std::shared_ptr<apogee::nn::RmsNorm> norm_;
  std::shared_ptr<apogee::nn::Linear> up_;
  std::shared_ptr<apogee::nn::Dropout> drop_;
  std::shared_ptr<apogee::nn::Linear> down_;
};

}  // namespace outside

#endif  // OUTSIDE_APP_BLOCKS_H_
