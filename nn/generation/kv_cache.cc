// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/generation/kv_cache.h"

#include <algorithm>
#include <utility>

#include "apogee/autograd/grad_mode.h"

namespace apogee::nn {
namespace {

thread_local KvCache* current_cache = nullptr;

// The keys of a head are side by side in memory, since a head reads all of them.
Tensor MakeEntry(int64_t max_tokens, const Tensor& like) {
  return Tensor::Empty({like.size(0), like.size(2), max_tokens, like.size(3)}, like.dtype(),
                       like.context())
      .Transpose(1, 2);
}

}  // namespace

KvCache::KvCache(int64_t batch, int64_t max_tokens, std::vector<int64_t> padding)
    : batch_(batch), max_tokens_(max_tokens), padding_(std::move(padding)) {
  APOGEE_CHECK(batch > 0 && max_tokens > 0, "KvCache: batch and max_tokens must be positive, got ",
               batch, " and ", max_tokens);
  if (padding_.empty()) return;
  const auto [least, most] = std::ranges::minmax(padding_);
  APOGEE_CHECK(std::ssize(padding_) == batch && least >= 0 && most < max_tokens,
               "KvCache: padding needs a number from 0 to ", max_tokens - 1, " for each of the ",
               batch, " rows; got ", padding_.size(), " numbers from ", least, " to ", most);
  if (most == 0) padding_.clear();
}

void KvCache::Advance(int64_t tokens) {
  for (const auto& [core, entry] : entries_) {
    APOGEE_CHECK(entry.tokens == length_ + tokens, "KvCache: Advance(", tokens,
                 ") after a forward in which attention \"", core->full_name(), "\" has read ",
                 entry.tokens - length_, " tokens");
  }
  length_ += tokens;
  made_ = {};
}

int64_t KvCache::PositionsWith(int64_t tokens) const {
  const int64_t skipped = padding_.empty() ? 0 : *std::ranges::min_element(padding_);
  return length_ + tokens - skipped;
}

KvCache::KeysAndValues KvCache::Append(const Module& core, const Tensor& k, const Tensor& v) {
  const std::string name = "attention \"" + core.full_name() + "\" with a key/value cache";
  APOGEE_CHECK(!autograd::GradModeEnabled() && !core.is_training(), name,
               ": a cache is for evaluation; call model.Train(false) and make an "
               "autograd::NoGradGuard first");
  const int64_t tokens = k.size(1), end = length_ + tokens;
  APOGEE_CHECK(k.size(0) == batch_, name, ": the batch has ", k.size(0), " rows, the cache has ",
               batch_);
  APOGEE_CHECK(end <= max_tokens_, name, ": ", length_, " cached tokens and ", tokens,
               " new ones exceed its max_tokens ", max_tokens_);
  Entry& entry = entries_[&core];
  if (!entry.k.defined()) {
    entry.k = MakeEntry(max_tokens_, k);
    entry.v = MakeEntry(max_tokens_, v);
  }
  APOGEE_CHECK(entry.tokens == length_, name, ": it has read ", entry.tokens - length_,
               " tokens since the last Advance; call it once in a forward, and Advance after each");
  APOGEE_CHECK(
      entry.k.size(2) == k.size(2) && entry.k.size(3) == k.size(3) && entry.k.dtype() == k.dtype(),
      name, ": keys are ", DTypeName(k.dtype()), " ", k.shape(), ", the cached ones ",
      DTypeName(entry.k.dtype()), " ", entry.k.shape());
  entry.k.Slice(1, length_, tokens).CopyFrom(k.Detach());
  entry.v.Slice(1, length_, tokens).CopyFrom(v.Detach());
  entry.tokens = end;
  return {entry.k.Slice(1, 0, end), entry.v.Slice(1, 0, end)};
}

// Padding is a document of its own: it sees only itself, so that its values are finite.
const KvCache::OfForward& KvCache::Make(int64_t tokens, const ContextPtr& context) {
  if (padding_.empty() || made_.tokens == tokens) return made_;
  std::vector<int64_t> first_keys, positions;
  for (const int64_t pad : padding_) {
    for (int64_t at = length_; at < length_ + tokens; ++at) {
      first_keys.push_back(at < pad ? 0 : pad);
      positions.push_back(at - first_keys.back());
    }
  }
  const Shape shape{batch_, tokens};
  made_ = {.tokens = tokens,
           .first_keys = Tensor::FromVector<int64_t>(first_keys, shape, context),
           .positions = Tensor::FromVector<int64_t>(positions, shape, context)};
  return made_;
}

Tensor KvCache::FirstKeys(int64_t tokens, const ContextPtr& context) {
  return Make(tokens, context).first_keys;
}

Tensor KvCache::Positions(int64_t tokens, const ContextPtr& context) {
  return Make(tokens, context).positions;
}

KvCache* CurrentKvCache() { return current_cache; }

KvCacheGuard::KvCacheGuard(KvCache* cache) : previous_(std::exchange(current_cache, cache)) {}
KvCacheGuard::~KvCacheGuard() { current_cache = previous_; }

std::string KvCacheProblem(Module& model) {
  if (!model.takes_documents()) {
    return "the model does not say that its tokens mix in nn::AttentionCore only and that "
           "positions come from there or from nn::RowsOfTokens (Module::takes_documents)";
  }
  for (const auto& [name, module] : model.NamedModules()) {
    if (module->mixes_tokens()) {
      return "module \"" + name + "\" mixes tokens outside of nn::AttentionCore";
    }
    if (module->sequence_part().size > 1) {
      return "sequence parallelism gives each rank only a part of a sequence's tokens";
    }
  }
  return "";
}

}  // namespace apogee::nn
