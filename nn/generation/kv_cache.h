// SPDX-License-Identifier: Apache-2.0

// KvCache: the keys and values of the tokens that a model has read. The next tokens attend to them,
// so that a forward reads only the new tokens.
//
//   nn::KvCache cache(/*batch=*/1, /*max_tokens=*/512);
//   const autograd::NoGradGuard no_grad;
//   model.Train(false);
//   const nn::KvCacheGuard guard(&cache);
//   Tensor logits = model(prompt);       // i64 [1, 16]: positions 0 to 15
//   cache.Advance(16);
//   logits = model(next);                // i64 [1, 1]: position 16, attends to 17 tokens
//   cache.Advance(1);
//
// nn::Generate does this. The logits are those of a forward of all tokens, up to rounding. Under a
// guard nn::AttentionCore adds its keys and values to the cache, and code that depends on a token's
// position (Rotated, RowsOfTokens, CheckTokens) counts the cached tokens. Under tensor parallelism
// each rank has a cache for its heads, in a pipeline each stage one for its pieces.
//
// Rows of unequal lengths begin with padding: `padding[b]` tokens of row b stand for nothing, with
// any ids. The other tokens do not see them, and positions count from behind them, so a row's
// logits are those of the row alone. The logits of padding mean nothing.
//
// A model works with a cache if it may be called with packed documents (Module::takes_documents).
// Memory: 2 B S K d elements per attention, for S = max_tokens, K heads of keys and head size d.
// They are allocated by the first forward. After a forward that threw, the cache is of no use.
#ifndef APOGEE_NN_GENERATION_KV_CACHE_H_
#define APOGEE_NN_GENERATION_KV_CACHE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/nn/module.h"

namespace apogee::nn {

class KvCache {
 public:
  // No padding: an empty list. Throws Error for sizes that are not positive, and for a padding
  // outside of [0, max_tokens).
  KvCache(int64_t batch, int64_t max_tokens, std::vector<int64_t> padding = {});

  int64_t batch() const { return batch_; }
  int64_t max_tokens() const { return max_tokens_; }
  // Tokens of each row that are in the cache, with padding.
  int64_t length() const { return length_; }
  // Call it after each forward, with the tokens of a row that it read. Throws Error if an attention
  // of the model has read another number.
  void Advance(int64_t tokens);

  // The rest is for modules, in a forward of `tokens` new tokens.

  // The positions that the longest row needs, once they have been read.
  int64_t PositionsWith(int64_t tokens) const;
  // Adds k and v [B, tokens, K, d] to those of `core`, and returns all of them
  // [B, length() + tokens, K, d]. Throws Error in grad mode or training mode, if there is no room,
  // for another batch, shape or dtype, and if `core` has been here in the same forward.
  struct KeysAndValues {
    Tensor k, v;
  };
  KeysAndValues Append(const Module& core, const Tensor& k, const Tensor& v);
  // i64 [B, tokens]: ops::AttentionOptions::first_keys, and the position of each token. Undefined
  // without padding: then token i has position length() + i.
  Tensor FirstKeys(int64_t tokens, const ContextPtr& context);
  Tensor Positions(int64_t tokens, const ContextPtr& context);

 private:
  struct Entry {
    Tensor k, v;         // [B, max_tokens, K, d]; in memory [B, K, max_tokens, d]
    int64_t tokens = 0;  // filled
  };
  // What all attentions of a forward share.
  struct OfForward {
    int64_t tokens = -1;
    Tensor first_keys, positions;
  };
  const OfForward& Make(int64_t tokens, const ContextPtr& context);

  int64_t batch_, max_tokens_, length_ = 0;
  std::vector<int64_t> padding_;
  std::map<const Module*, Entry> entries_;
  OfForward made_;
};

// That of this thread's innermost guard; null: none.
KvCache* CurrentKvCache();

// Sets it for a scope, and restores the previous one.
class KvCacheGuard {
 public:
  explicit KvCacheGuard(KvCache* cache);
  ~KvCacheGuard();
  KvCacheGuard(const KvCacheGuard&) = delete;
  KvCacheGuard& operator=(const KvCacheGuard&) = delete;

 private:
  KvCache* previous_;
};

// Why the model cannot be run with a cache, for messages; "" if it can.
std::string KvCacheProblem(Module& model);

}  // namespace apogee::nn

#endif  // APOGEE_NN_GENERATION_KV_CACHE_H_
