// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/tiny_model.h"

#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/rng.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"

namespace apogee::matrix {
namespace {

// The loss does not depend on the bias of the keys. Its gradient is only rounding error, which
// optimizers that normalise gradients would turn into full-size updates.
void FreezeKeyBiases(const nn::Module& model) {
  for (const auto& parameter : model.Parameters()) {
    if (parameter->name().ends_with("c_attn.bias")) parameter->set_requires_grad(false);
  }
}

constexpr int64_t kIgnored = nn::CrossEntropyLoss{}.ignore_index;

// True if target t of the sample at `place` counts, in micro-batches of `window` samples.
bool Counts(int64_t step, int64_t place, int64_t t, int64_t window, int64_t tokens) {
  const int64_t in_window = place % window;
  const bool second_half = 2 * in_window >= window;
  switch ((step + place / window) % 3) {
    case 1:
      if (second_half) return false;
      break;
    case 2:
      if (!second_half) return false;
      break;
    default:
      break;
  }
  // Not periodic, so ranks differ.
  return t < in_window * in_window / 4 % (tokens + 1);
}

}  // namespace

TinyModel::TinyModel(const TinyModelOptions& options) {
  if (options.kind == TinyKind::kGpt2) {
    lm_ = Register("lm", std::make_shared<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kTinyVocab,
                                                                   .n_positions = 8,
                                                                   .n_embd = 12,
                                                                   .n_layer = 2,
                                                                   .n_head = 3,
                                                                   .dropout = options.dropout}));
  } else {
    lm_ = Register("lm", std::make_shared<nn::Llama>(nn::LlamaConfig{.vocab_size = kTinyVocab,
                                                                     .hidden_size = 16,
                                                                     .intermediate_size = 20,
                                                                     .num_hidden_layers = 2,
                                                                     .num_attention_heads = 4,
                                                                     .num_key_value_heads = 2,
                                                                     .max_position_embeddings = 8,
                                                                     .tie_word_embeddings = true}));
  }
  extra_ = RegisterParameter("extra", {1, kTinyVocab}, nn::Init::Normal(0, 0.1));
  unused_ = RegisterParameter("unused", {3, 5}, nn::Init::Normal(0, 1));
  frozen_ = RegisterParameter("frozen", {1, kTinyVocab}, nn::Init::Normal(0, 0.1));
  frozen_->set_requires_grad(false);
}

Tensor TinyModel::Forward(const Tensor& tokens) {
  const Tensor logits = autograd::Add((*lm_)(tokens), frozen_->value().Detach().View({kTinyVocab}));
  std::vector<double> flags;
  bool any = false;
  const std::vector<int64_t> ids = tokens.ToVector<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool flag = ids[i - i % kTinyTokens] == 0;
    flags.push_back(flag ? 1 : 0);
    any = any || flag;
  }
  if (!any) return logits;  // `extra` gets no gradient here
  const Tensor column = Tensor::FromVector<double>(flags, {static_cast<int64_t>(flags.size()), 1},
                                                   tokens.context(), logits.dtype());
  const Tensor bias = autograd::MatMul(column, extra_->value());
  return autograd::Add(logits, autograd::View(bias, logits.shape()));
}

Tensor TinyTokens(const ContextPtr& context, const SampleRange& range, int64_t shift,
                  int64_t tokens) {
  // Coprime to the batch size.
  constexpr int64_t kStrides[] = {1, 5, 7, 11, 13, 17, 19, 23, 25};
  std::vector<int64_t> values;
  for (int64_t place = range.first; place < range.first + range.count; ++place) {
    const int64_t sample = place * kStrides[range.permutation] % kTinyBatch;
    const bool flagged =
        (range.step % 3 == 0 && sample == 0) || (range.step % 3 == 2 && sample == 25);
    for (int64_t t = shift; t < tokens + shift; ++t) {
      const auto counter = static_cast<uint64_t>((range.step * kTinyBatch + sample) * 8 + t);
      const int64_t token =
          1 + static_cast<int64_t>(Philox(MakeKey(7, "tokens"), counter)[0] % (kTinyVocab - 1));
      values.push_back(t == 0 && flagged ? 0 : token);
    }
  }
  return Tensor::FromVector<int64_t>(values, {range.count, tokens}, context);
}

data::Batch TinyBatch(const ContextPtr& context, const SampleRange& range, int64_t tokens) {
  data::Batch batch = {TinyTokens(context, range, 0, tokens),
                       TinyTokens(context, range, 1, tokens)};
  if (range.ignoring_window == 0) return batch;
  std::vector<int64_t> targets = batch.targets.ToVector<int64_t>();
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t place = range.first + at / tokens, t = at % tokens;
    if (!Counts(range.step, place, t, range.ignoring_window, tokens)) targets[i] = kIgnored;
  }
  batch.targets = Tensor::FromVector<int64_t>(targets, batch.targets.shape(), context);
  return batch;
}

Tensor TinyLoss(nn::Module& model, const ContextPtr& context, const SampleRange& range) {
  const data::Batch batch = TinyBatch(context, range);
  return nn::CrossEntropyLoss()(model(batch.inputs), batch.targets);
}

std::unique_ptr<nn::Module> TinyWorkload::MakeModel() const {
  auto model = std::make_unique<TinyModel>(TinyModelOptions{.kind = kind_});
  FreezeKeyBiases(*model);
  return model;
}

std::unique_ptr<nn::Module> LmWorkload::Make(int64_t head_chunks) const {
  std::unique_ptr<nn::Module> model;
  if (kind_ == TinyKind::kGpt2) {
    model = std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kTinyVocab,
                                                      .n_positions = 8,
                                                      .n_embd = 16,
                                                      .n_layer = size_.num_layers,
                                                      .n_head = 4,
                                                      .tie_word_embeddings = tied_,
                                                      .recompute_activations = head_chunks > 0,
                                                      .head_chunks = head_chunks});
  } else {
    model = std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kTinyVocab,
                                                        .hidden_size = 32,
                                                        .intermediate_size = 24,
                                                        .num_hidden_layers = size_.num_layers,
                                                        .num_attention_heads = 8,
                                                        .num_key_value_heads = 4,
                                                        .max_position_embeddings = 8,
                                                        .tie_word_embeddings = tied_,
                                                        .recompute_activations = head_chunks > 0,
                                                        .head_chunks = head_chunks});
  }
  FreezeKeyBiases(*model);
  return model;
}

}  // namespace apogee::matrix
