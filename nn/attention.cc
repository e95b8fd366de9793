// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/attention.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/error.h"
#include "apogee/nn/generation/kv_cache.h"

namespace apogee::nn {

namespace {

std::string ProblemsOf(const AttentionCoreOptions& o) {
  std::string problems;
  const auto require = [&](bool ok, const std::string& problem) {
    if (!ok) problems += "\n  " + problem;
  };
  require(o.head_dim > 0, internal::Concat("head_dim must be positive, got ", o.head_dim));
  require(o.scale >= 0 && std::isfinite(o.scale),
          internal::Concat("scale must be above 0, or 0 for 1 / sqrt(head_dim), got ", o.scale));
  require(o.window >= 0, internal::Concat("window must be above 0, or 0 for none, got ", o.window));
  require(o.window == 0 || o.causal,
          internal::Concat("a window of ", o.window, " needs causal attention"));
  require(o.soft_cap >= 0 && std::isfinite(o.soft_cap),
          internal::Concat("soft_cap must be above 0, or 0 for none, got ", o.soft_cap));
  require(o.queries_per_key > 0,
          internal::Concat("queries_per_key must be positive, got ", o.queries_per_key));
  return problems;
}

autograd::RotaryOptions RotaryOptionsOf(const RotarySettings& rotary) {
  return {.theta = rotary.theta,
          .dims = rotary.dims,
          .inverse_frequencies = rotary.inverse_frequencies};
}

}  // namespace

AttentionCore::AttentionCore(int64_t head_dim)
    : AttentionCore(AttentionCoreOptions{.head_dim = head_dim}) {}

AttentionCore::AttentionCore(const AttentionCoreOptions& options) : options_(options) {
  const std::string problems = ProblemsOf(options);
  APOGEE_CHECK(problems.empty(), "attention: invalid options:", problems);
}

autograd::AttentionOptions KernelOptionsOf(const AttentionCoreOptions& options) {
  return {.scale = options.scale,
          .causal = options.causal,
          .window = options.window,
          .soft_cap = options.soft_cap};
}

Tensor AttentionCore::Forward(const Tensor& qkv) {
  const bool packed = function_ == nullptr && CurrentKvCache() == nullptr;
  if (packed && options_.queries_per_key == 1) {
    return autograd::PackedAttention(qkv, KeyValueHeads(qkv), KernelOptions(qkv));
  }
  const ops::Qkv parts = Unpacked(qkv);
  const Tensor out = Attend(parts.q, parts.k, parts.v);
  return autograd::View(out, {out.size(0), out.size(1), out.size(2) * out.size(3)});
}

int64_t AttentionCore::KeyValueHeads(const Tensor& qkv) const {
  const int64_t heads = options_.queries_per_key + 2;
  APOGEE_CHECK(qkv.defined() && qkv.rank() == 3 && qkv.size(2) % (heads * options_.head_dim) == 0,
               "attention \"", full_name(), "\": needs packed q, k and v [batch, tokens, n * ",
               heads, " heads of ", options_.head_dim, "], got ", qkv.shape());
  return qkv.size(2) / (heads * options_.head_dim);
}

ops::Qkv AttentionCore::Unpacked(const Tensor& qkv) const {
  const int64_t keys = KeyValueHeads(qkv), queries = options_.queries_per_key * keys;
  if (queries == keys) return autograd::UnpackQkv(qkv, keys);
  const Tensor heads = Heads(autograd::Contiguous(qkv));
  return {autograd::Slice(heads, 2, 0, queries), autograd::Slice(heads, 2, queries, keys),
          autograd::Slice(heads, 2, queries + keys, keys)};
}

Tensor AttentionCore::Attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
  if (KvCache* const cache = CurrentKvCache()) return AttendCached(*cache, q, k, v);
  if (function_ == nullptr) return autograd::Attention(q, k, v, KernelOptions(q));
  return function_(q, k, v, Documents(q), options_);
}

Tensor AttentionCore::AttendCached(KvCache& cache, const Tensor& q, const Tensor& k,
                                   const Tensor& v) const {
  APOGEE_CHECK(function_ == nullptr && sequence_part().is_whole(), "attention \"", full_name(),
               "\": it runs over parts of sequences (sequence parallelism), and these have no "
               "key/value cache; set use_cache = false");
  APOGEE_CHECK(options_.causal, "attention \"", full_name(),
               "\": a key/value cache needs causal attention");
  const KvCache::KeysAndValues all = cache.Append(*this, k, v);
  autograd::AttentionOptions options = KernelOptions(q);
  options.first_keys = cache.FirstKeys(q.size(1), q.context());
  return autograd::Attention(q, all.k, all.v, options);
}

DocumentsPtr AttentionCore::Documents(const Tensor& q) const {
  DocumentsPtr documents = DocumentsOf("attention", q, sequence_part());
  APOGEE_CHECK(documents == nullptr || options_.causal || documents->seen_keys().defined(),
               "attention \"", full_name(),
               "\": packed documents need causal attention, since a token would see the documents "
               "behind its own; give each document a sequence of its own");
  return documents;
}

autograd::AttentionOptions AttentionCore::KernelOptions(const Tensor& q) const {
  autograd::AttentionOptions options = KernelOptionsOf(options_);
  const DocumentsPtr documents = Documents(q);
  if (documents != nullptr && documents->seen_keys().defined()) {
    options.mask = documents->seen_keys();
  } else if (documents != nullptr) {
    options.first_keys = documents->FirstKeys(sequence_part(), sequence_part());
  }
  return options;
}

Tensor AttentionCore::Heads(const Tensor& x) const {
  const int64_t head_dim = options_.head_dim;
  return autograd::View(x, {x.size(0), x.size(1), x.size(-1) / head_dim, head_dim});
}

Tensor AttentionCore::Rotated(const Tensor& x, const RotarySettings& rotary) const {
  autograd::RotaryOptions options = RotaryOptionsOf(rotary);
  if (const DocumentsPtr documents = DocumentsOf("rotary positions", x, sequence_part())) {
    options.positions = documents->Positions(sequence_part());
    return autograd::Rotary(x, options);
  }
  if (KvCache* const cache = CurrentKvCache()) {
    options.first_position = cache->length();
    options.positions = cache->Positions(x.size(1), x.context());
    return autograd::Rotary(x, options);
  }
  const std::vector<TokenRun> runs = sequence_part().Runs(x.size(1));
  options.first_position = runs[0].first;
  if (runs.size() > 1) {
    options.jump_at = runs[0].length;
    options.jump = runs[1].first - runs[0].first - runs[0].length;
  }
  return autograd::Rotary(x, options);
}

void AttentionCore::ReplaceAttention(Function function) {
  APOGEE_CHECK(function_ == nullptr,
               "attention: it has been replaced before; a model can be boosted once");
  function_ = std::move(function);
}

DocumentsPtr DocumentsOf(const char* what, const Tensor& x, const SequencePart& part) {
  const DocumentsPtr& documents = autograd::CurrentDocuments();
  if (documents == nullptr) return documents;
  APOGEE_CHECK(CurrentKvCache() == nullptr, what,
               ": packed documents and a key/value cache exclude each other; give the cache one "
               "document a row");
  documents->CheckFit(what, x.size(0), part.Whole(x.size(1)));
  return documents;
}

Tensor RowsOfTokens(const Tensor& table, const Tensor& tokens_in, const SequencePart& part) {
  if (const DocumentsPtr documents = DocumentsOf("positions", tokens_in, part)) {
    return autograd::Embedding(documents->Positions(part), table);
  }
  const int64_t tokens = tokens_in.size(1);
  if (KvCache* const cache = CurrentKvCache()) {
    const Tensor positions = cache->Positions(tokens, table.context());
    return positions.defined() ? autograd::Embedding(positions, table)
                               : autograd::Slice(table, 0, cache->length(), tokens);
  }
  const std::vector<TokenRun> runs = part.Runs(tokens);
  if (runs.size() == 1) return autograd::Slice(table, 0, runs[0].first, tokens);
  std::vector<int64_t> rows;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.length; ++i) rows.push_back(run.first + i);
  }
  return autograd::Embedding(Tensor::FromVector<int64_t>(rows, {tokens}, table.context()), table);
}

void CheckTokens(const char* model, const Tensor& tokens, int64_t max_tokens,
                 const SequencePart& part) {
  APOGEE_CHECK(tokens.defined() && tokens.rank() == 2, model, ": needs tokens [batch, up to ",
               max_tokens, "], got ", tokens.shape());
  const KvCache* const cache = CurrentKvCache();
  const int64_t whole =
      cache == nullptr ? part.Whole(tokens.size(1)) : cache->PositionsWith(tokens.size(1));
  APOGEE_CHECK(whole <= max_tokens, model, ": needs tokens [batch, up to ", max_tokens, "], got [",
               tokens.size(0), ", ", whole, "]");
}

void AttentionCore::DescribeConfig(ConfigTexts& texts) const {
  const AttentionCoreOptions& o = options_;
  texts.function["head_dim"] = ConfigText(o.head_dim);
  const double usual_scale = 1 / std::sqrt(static_cast<double>(o.head_dim));
  if (o.scale != 0 && o.scale != usual_scale) texts.function["scale"] = ConfigText(o.scale);
  if (o.window != 0) texts.function["window"] = ConfigText(o.window);
  if (o.soft_cap != 0) texts.function["soft_cap"] = ConfigText(o.soft_cap);
  if (!o.causal) texts.function["causal"] = ConfigText(o.causal);
  if (o.queries_per_key != 1) {
    texts.function["queries_per_key"] = ConfigText(o.queries_per_key);
  }
}

}  // namespace apogee::nn
