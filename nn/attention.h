// SPDX-License-Identifier: Apache-2.0

// AttentionCore: causal attention without its projections, a module without parameters. As it is a
// module of its own, a parallel plan can name it and run it over ranks that each hold a part of
// every sequence (nn/parallel/sequence_parallel.h). The functions that depend on token positions
// are here, too.
//
//   core_(Register("core", std::make_shared<nn::AttentionCore>(head_dim)))
//   Tensor out = (*core_)(qkv);                          // packed: [B, T, 3 D] -> [B, T, D]
//   Tensor q = core_->Rotated(core_->Heads(x), theta);   // or apart: [B, T, H d] -> [B, T, H, d]
//   Tensor out = core_->Attend(q, k, v);                 // [B, T, H, d]
//
// The number of heads comes from the tensors given: under tensor parallelism a rank has some of the
// heads. T counts the tokens that this rank holds (sequence_part()). Module hooks run around
// operator() only, not around Attend.
//
// If the model was called with the starts of packed documents (Module::takes_documents), a token
// attends to tokens of its own document only, and positions count from the document's start.
#ifndef APOGEE_NN_ATTENTION_H_
#define APOGEE_NN_ATTENTION_H_

#include <functional>
#include <memory>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/nn/configured.h"

namespace apogee::nn {

using DocumentsPtr = std::shared_ptr<autograd::Documents>;

class AttentionCore : public Module, public Configured {
 public:
  explicit AttentionCore(int64_t head_dim);
  // Packed: the thirds of the last dim are q, k and v. qkv [B, T, 3 H d] -> [B, T, H d].
  Tensor Forward(const Tensor& qkv) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  // q [B, T, H, d], k and v [B, T, K, d], K divides H (grouped queries) -> [B, T, H, d].
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v) const;
  // [B, T, H * d] -> [B, T, H, d].
  Tensor Heads(const Tensor& x) const;
  // Applies rotary positions; call it on q and k before Attend. x [B, T, H, d] -> the same shape.
  // Positions are those of this rank's tokens in the whole sequence.
  Tensor Rotated(const Tensor& x, double theta) const;

  // Computes `function` instead of causal attention from now on; q, k, v and the result are shaped
  // as in Attend. `documents` are those of the whole sequences, of which this rank may hold parts;
  // null: there are none. Throws Error if attention has been replaced before.
  using Function = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const DocumentsPtr& documents)>;
  void ReplaceAttention(Function function);

 private:
  autograd::AttentionOptions Options(const Tensor& q) const;

  int64_t head_dim_;
  Function function_;  // null: autograd::Attention
};

// The documents of this forward, null if there are none. Throws Error unless x [B, T, ..] holds
// `part` of their sequences; `what` begins the message.
DocumentsPtr DocumentsOf(const char* what, const Tensor& x, const SequencePart& part);
// From a table of positions [P, d], the rows of this rank's tokens [B, T]: [T, d]. With documents,
// the rows of the tokens' places in them: [B, T, d].
Tensor RowsOfTokens(const Tensor& table, const Tensor& tokens, const SequencePart& part);
// Throws Error unless `tokens` is [B, T] and the whole sequence, of which `part` is this rank's,
// has at most max_tokens tokens. `model` begins the message.
void CheckTokens(const char* model, const Tensor& tokens, int64_t max_tokens,
                 const SequencePart& part);

}  // namespace apogee::nn

#endif  // APOGEE_NN_ATTENTION_H_
