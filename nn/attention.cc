// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/attention.h"

#include <utility>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/shape.h"

namespace apogee::nn {

AttentionCore::AttentionCore(int64_t head_dim) : head_dim_(head_dim) {
  APOGEE_CHECK(head_dim > 0, "attention: the head size must be positive, got ", head_dim);
}

Tensor AttentionCore::Forward(const Tensor& qkv) {
  const int64_t num_heads = qkv.size(-1) / (3 * head_dim_);
  if (function_ == nullptr) return autograd::PackedAttention(qkv, num_heads, Options(qkv));
  const ops::Qkv parts = autograd::UnpackQkv(qkv, num_heads);
  const Tensor out = Attend(parts.q, parts.k, parts.v);
  return autograd::View(out, {out.size(0), out.size(1), out.size(2) * out.size(3)});
}

Tensor AttentionCore::Attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
  if (function_ == nullptr) return autograd::Attention(q, k, v, Options(q));
  return function_(q, k, v, DocumentsOf("attention", q, sequence_part()));
}

autograd::AttentionOptions AttentionCore::Options(const Tensor& q) const {
  const DocumentsPtr documents = DocumentsOf("attention", q, sequence_part());
  if (documents == nullptr) return {};
  return {.first_keys = documents->FirstKeys(sequence_part(), sequence_part())};
}

Tensor AttentionCore::Heads(const Tensor& x) const {
  return autograd::View(x, {x.size(0), x.size(1), x.size(-1) / head_dim_, head_dim_});
}

Tensor AttentionCore::Rotated(const Tensor& x, double theta) const {
  if (const DocumentsPtr documents = DocumentsOf("rotary positions", x, sequence_part())) {
    return autograd::Rotary(x,
                            {.theta = theta, .positions = documents->Positions(sequence_part())});
  }
  const std::vector<TokenRun> runs = sequence_part().Runs(x.size(1));
  autograd::RotaryOptions options{.theta = theta, .first_position = runs[0].first};
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
  if (documents != nullptr) documents->CheckFit(what, x.size(0), part.Whole(x.size(1)));
  return documents;
}

Tensor RowsOfTokens(const Tensor& table, const Tensor& tokens_in, const SequencePart& part) {
  if (const DocumentsPtr documents = DocumentsOf("positions", tokens_in, part)) {
    return autograd::Embedding(documents->Positions(part), table);
  }
  const int64_t tokens = tokens_in.size(1);
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
  const int64_t whole = part.Whole(tokens.size(1));
  APOGEE_CHECK(whole <= max_tokens, model, ": needs tokens [batch, up to ", max_tokens, "], got [",
               tokens.size(0), ", ", whole, "]");
}

void AttentionCore::DescribeConfig(ConfigTexts& texts) const {
  texts.function["head_dim"] = ConfigText(head_dim_);
}

}  // namespace apogee::nn
