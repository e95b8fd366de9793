// SPDX-License-Identifier: Apache-2.0

// AttentionCore: attention without its projections, a module without parameters. As it is a module
// of its own, a parallel plan can name it and run it over ranks that each hold a part of every
// sequence (nn/parallel/sequence_parallel.h). The functions that depend on token positions are
// here, too.
//
//   core_(Register("core", std::make_shared<nn::AttentionCore>(
//                              nn::AttentionCoreOptions{.head_dim = 64, .window = 4096})))
//   Tensor out = (*core_)(qkv);                   // packed: [B, T, (H + 2 K) d] -> [B, T, H d]
//   Tensor q = core_->Rotated(core_->Heads(x), {.theta = 1e6});   // or apart: -> [B, T, H, d]
//   Tensor out = core_->Attend(q, k, v);          // [B, T, H, d]
//
// The number of heads comes from the tensors given: under tensor parallelism a rank has some of the
// heads. T counts the tokens that this rank holds (sequence_part()). Module hooks run around
// operator() only, not around Attend.
//
// If the model was called with the starts of packed documents (Module::takes_documents), a token
// attends to tokens of its own document only, and positions count from the document's start. Under
// a key/value cache (generation/kv_cache.h) a token also attends to the cached ones, and positions
// go on from there.
#ifndef APOGEE_NN_ATTENTION_H_
#define APOGEE_NN_ATTENTION_H_

#include <functional>
#include <memory>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/nn/configured.h"

namespace apogee::nn {

class KvCache;

using DocumentsPtr = std::shared_ptr<autograd::Documents>;

struct AttentionCoreOptions {
  int64_t head_dim = 0;  // d
  double scale = 0;      // of the scores; 0: 1 / sqrt(head_dim)
  // Above 0: a token sees only the last `window` tokens, itself included. Needs `causal`.
  int64_t window = 0;
  // Above 0: a score s becomes soft_cap * tanh(s / soft_cap).
  double soft_cap = 0;
  // Whether a token sees no later ones. If not, it cannot take packed documents.
  bool causal = true;
  // H / K, for the packed Forward, which cannot see it in its input.
  int64_t queries_per_key = 1;
};

// Of rotate-half positions; ops::RotaryOptions explains them.
struct RotarySettings {
  double theta = 10000;
  int64_t dims = 0;
  std::vector<double> inverse_frequencies = {};
};

class AttentionCore : public Module, public Configured {
 public:
  explicit AttentionCore(int64_t head_dim);
  // Throws Error that lists every invalid setting.
  explicit AttentionCore(const AttentionCoreOptions& options);
  const AttentionCoreOptions& options() const { return options_; }
  // Packed: qkv [B, T, (H + 2 K) d], q before k before v, -> [B, T, H d].
  Tensor Forward(const Tensor& qkv) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  // q, k and v of a packed qkv, as views: [B, T, H, d] and [B, T, K, d].
  ops::Qkv Unpacked(const Tensor& qkv) const;
  // q [B, T, H, d], k and v [B, T, K, d], K divides H (grouped queries) -> [B, T, H, d].
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v) const;
  // [B, T, H * d] -> [B, T, H, d].
  Tensor Heads(const Tensor& x) const;
  // Applies rotary positions; call it on q and k before Attend. x [B, T, H, d] -> the same shape.
  // Positions are those of this rank's tokens in the whole sequence.
  Tensor Rotated(const Tensor& x, const RotarySettings& rotary) const;

  // Computes `function` instead of autograd::Attention from now on; q, k, v and the result are
  // shaped as in Attend. `documents` are those of the whole sequences, of which this rank may hold
  // parts; null: there are none. `options` are this module's. Throws Error if attention has been
  // replaced before.
  using Function =
      std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v,
                           const DocumentsPtr& documents, const AttentionCoreOptions& options)>;
  void ReplaceAttention(Function function);

 private:
  // K of a packed qkv.
  int64_t KeyValueHeads(const Tensor& qkv) const;
  DocumentsPtr Documents(const Tensor& q) const;
  autograd::AttentionOptions KernelOptions(const Tensor& q) const;
  // Attend to the tokens of the cache and the new ones.
  Tensor AttendCached(KvCache& cache, const Tensor& q, const Tensor& k, const Tensor& v) const;

  AttentionCoreOptions options_;
  Function function_;  // null: autograd::Attention
};

// The options of autograd::Attention over whole sequences without documents.
autograd::AttentionOptions KernelOptionsOf(const AttentionCoreOptions& options);

// The documents of this forward, null if there are none. Throws Error unless x [B, T, ..] holds
// `part` of their sequences; `what` begins the message.
DocumentsPtr DocumentsOf(const char* what, const Tensor& x, const SequencePart& part);
// From a table of positions [P, d], the rows of this rank's tokens [B, T]: [T, d]. With documents,
// the rows of the tokens' places in them: [B, T, d].
Tensor RowsOfTokens(const Tensor& table, const Tensor& tokens, const SequencePart& part);
// Throws Error unless `tokens` is [B, T] and the whole sequence, of which `part` is this rank's,
// has at most max_tokens tokens, cached ones included. `model` begins the message.
void CheckTokens(const char* model, const Tensor& tokens, int64_t max_tokens,
                 const SequencePart& part);

}  // namespace apogee::nn

#endif  // APOGEE_NN_ATTENTION_H_
