// SPDX-License-Identifier: Apache-2.0

// AttentionCore: causal attention without its projections, as a module without parameters, so that
// a plan can say where a model's attention is and run it over ranks that hold parts of each
// sequence (nn/parallel/sequence_parallel.h). What depends on tokens' places is here, too.
//
//   core_(Register("core", std::make_shared<nn::AttentionCore>(head_dim)))
//   Tensor out = (*core_)(qkv);                          // packed: [B, T, 3 D] -> [B, T, D]
//   Tensor q = core_->Rotated(core_->Heads(x), theta);   // or apart: [B, T, H d] -> [B, T, H, d]
//   Tensor out = core_->Attend(q, k, v);                 // [B, T, H, d]
//
// Numbers of heads are those of the tensors given: a rank may have some of them. Tokens are those
// of sequence_part(). Module hooks run around operator() only.
#ifndef APOGEE_NN_ATTENTION_H_
#define APOGEE_NN_ATTENTION_H_

#include <functional>

#include "apogee/nn/configured.h"

namespace apogee::nn {

class AttentionCore : public Module, public Configured {
 public:
  explicit AttentionCore(int64_t head_dim);
  // Packed: the thirds of the last dim are q, k and v.
  Tensor Forward(const Tensor& qkv) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  // q [B, T, H, d], k and v [B, T, K, d], K divides H (grouped queries) -> [B, T, H, d].
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v) const;
  // [B, T, H * d] -> [B, T, H, d].
  Tensor Heads(const Tensor& x) const;
  // Rotary positions of the tokens that are here, before Attend. x [B, T, H, d].
  Tensor Rotated(const Tensor& x, double theta) const;

  // What is computed instead of causal attention. Throws Error when it has been replaced before.
  using Function = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v)>;
  void ReplaceAttention(Function function);

 private:
  int64_t head_dim_;
  Function function_;  // null: autograd::Attention
};

// Rows [places of the tokens] of a table of positions [P, d]: [tokens, d].
Tensor RowsOfTokens(const Tensor& table, int64_t tokens, const SequencePart& part);
// Throws Error unless tokens are [B, T] of sequences of at most max_tokens.
void CheckTokens(const char* model, const Tensor& tokens, int64_t max_tokens,
                 const SequencePart& part);

}  // namespace apogee::nn

#endif  // APOGEE_NN_ATTENTION_H_
