// A small training run for parity tests: a tiny GPT-2 or Llama with the awkward parameters that
// break data parallelism (tied, frozen, unused, used by some samples only), on a stream of samples
// that is a pure function of (step, sample). The plain run is the loop without a booster.
//
//   Weights want = PlainRun({.dtype = DType::kF64});
#ifndef APOGEE_TESTS_SUPPORT_TINY_RUN_H_
#define APOGEE_TESTS_SUPPORT_TINY_RUN_H_

#include <memory>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/adam.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"

namespace apogee::testing {

inline constexpr int64_t kTinyVocab = 19, kTinyTokens = 5, kTinyBatch = 36;

enum class TinyKind { kGpt2, kLlama };

struct TinyRunOptions {
  TinyKind kind = TinyKind::kGpt2;
  DType dtype = DType::kF64;
  int64_t steps = 20;
  double max_norm = 0;
  double dropout = 0;
  // Order of the samples within the batch: 0 as they are; others permute (to measure rounding
  // noise).
  int permutation = 0;
};

// The language model, plus "extra" [1, vocab], a bias on the logits of flagged samples (first token
// 0), "unused" and "frozen".
class TinyModel : public nn::Module {
 public:
  explicit TinyModel(const TinyRunOptions& options) {
    if (options.kind == TinyKind::kGpt2) {
      lm_ = Register("lm", std::make_shared<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kTinyVocab,
                                                                     .n_positions = 8,
                                                                     .n_embd = 12,
                                                                     .n_layer = 2,
                                                                     .n_head = 3,
                                                                     .dropout = options.dropout}));
    } else {
      lm_ =
          Register("lm", std::make_shared<nn::Llama>(nn::LlamaConfig{.vocab_size = kTinyVocab,
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

  Tensor Forward(const Tensor& tokens) override {
    const Tensor logits =
        autograd::Add((*lm_)(tokens), frozen_->value().Detach().View({kTinyVocab}));
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

 private:
  std::shared_ptr<nn::Module> lm_;
  autograd::ParameterPtr extra_, unused_, frozen_;
};

// Samples [first, first + rows) of the step's batch. shift 1 gives the targets. Flagged: in step 3k
// sample 0 only, in step 3k + 1 none, in step 3k + 2 sample 25 only.
inline Tensor TinyTokens(const ContextPtr& context, const TinyRunOptions& options, int64_t step,
                         int64_t first, int64_t rows, int64_t shift) {
  std::vector<int64_t> values;
  for (int64_t place = first; place < first + rows; ++place) {
    // 5, 7, 11 and 13 are coprime to the batch.
    constexpr int64_t kStrides[] = {1, 5, 7, 11, 13};
    const int64_t sample = place * kStrides[options.permutation] % kTinyBatch;
    const bool flagged = (step % 3 == 0 && sample == 0) || (step % 3 == 2 && sample == 25);
    for (int64_t t = shift; t < kTinyTokens + shift; ++t) {
      const uint64_t counter = static_cast<uint64_t>((step * kTinyBatch + sample) * 8 + t);
      const int64_t token =
          1 + static_cast<int64_t>(Philox(MakeKey(7, "tokens"), counter)[0] % (kTinyVocab - 1));
      values.push_back(t == 0 && flagged ? 0 : token);
    }
  }
  return Tensor::FromVector<int64_t>(values, {rows, kTinyTokens}, context);
}

inline Tensor TinyLoss(nn::Module& model, const ContextPtr& context, const TinyRunOptions& options,
                       int64_t step, int64_t first, int64_t rows) {
  return nn::CrossEntropyLoss()(model(TinyTokens(context, options, step, first, rows, 0)),
                                TinyTokens(context, options, step, first, rows, 1));
}

inline optim::AdamWOptions TinyAdamW() { return {.lr = 1e-2, .weight_decay = 0.1}; }

// The plain loop on one rank with the whole batch. `start`: the initial weights, if wanted.
inline Weights PlainRun(const TinyRunOptions& options, Weights* start = nullptr) {
  const ContextPtr context = CpuContext();
  TinyModel model(options);
  model.Initialize(context, {.seed = 11, .dtype = options.dtype});
  optim::AdamW optimizer(model.Parameters(), TinyAdamW());
  optimizer.set_step_options({.max_norm = options.max_norm});
  if (start != nullptr) *start = WeightsOf(model);
  for (int64_t step = 0; step < options.steps; ++step) {
    autograd::Backward(TinyLoss(model, context, options, step, 0, kTinyBatch));
    optimizer.step();
    optimizer.zero_grad();
  }
  return WeightsOf(model);
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_TINY_RUN_H_
