// SPDX-License-Identifier: Apache-2.0

// A tiny GPT-2 or Llama with parameters that are difficult for data parallelism (tied, frozen,
// unused, used by some samples only). Its samples are a pure function of (step, sample).
//
//   TinyModel model({.kind = TinyKind::kLlama});
//   model.Initialize(context, {.seed = 11});
//   Tensor loss = TinyLoss(model, context, {.step = 0, .first = 0, .count = kTinyBatch});
#ifndef APOGEE_MATRIX_MODELS_TINY_MODEL_H_
#define APOGEE_MATRIX_MODELS_TINY_MODEL_H_

#include <memory>

#include "apogee/matrix/workload.h"
#include "apogee/nn/losses.h"

namespace apogee::matrix {

inline constexpr int64_t kTinyVocab = 19, kTinyTokens = 5, kTinyBatch = 36;

enum class TinyKind { kGpt2, kLlama };

struct TinyModelOptions {
  TinyKind kind = TinyKind::kGpt2;
  double dropout = 0;  // GPT-2 only
};

// The language model, plus the parameters "unused", "frozen" and "extra" [1, vocab]. "extra" is a
// bias on the logits of flagged samples, those whose first token is 0.
class TinyModel : public nn::Module {
 public:
  explicit TinyModel(const TinyModelOptions& options);
  // tokens [samples, kTinyTokens] -> logits [samples, kTinyTokens, kTinyVocab].
  Tensor Forward(const Tensor& tokens) override;

 private:
  std::shared_ptr<nn::Module> lm_;
  autograd::ParameterPtr extra_, unused_, frozen_;
};

// The tokens of a range; shift 1 gives the targets. Permutations 0 to 8. The flagged samples are:
//
//   step 3k      sample 0
//   step 3k + 1  none
//   step 3k + 2  sample 25
Tensor TinyTokens(const ContextPtr& context, const SampleRange& range, int64_t shift,
                  int64_t tokens = kTinyTokens);
// Tokens and targets of a range; if the range says so, some targets are ignored.
data::Batch TinyBatch(const ContextPtr& context, const SampleRange& range,
                      int64_t tokens = kTinyTokens);
Tensor TinyLoss(nn::Module& model, const ContextPtr& context, const SampleRange& range);

class TinyWorkload : public Workload {
 public:
  explicit TinyWorkload(TinyKind kind) : kind_(kind) {}
  std::unique_ptr<nn::Module> MakeModel() const override;
  int64_t num_samples() const override { return kTinyBatch; }
  Criterion criterion() const override { return nn::CrossEntropyLoss(); }
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override {
    return TinyBatch(context, range);
  }
  double max_norm() const override { return 0.3; }
  int64_t bucket_bytes() const override { return 4000; }
  LowRank low_rank() const override { return {.rank = 2, .update_proj_gap = 10}; }
  bool has_exact_means() const override { return false; }

 protected:
  const TinyKind kind_;
};

// The plain language models, with numbers of heads that 2 and 4 ranks can divide. The criterion
// given to boost gets the model's own output, so under tensor parallelism the logits stay sharded.
class LmWorkload : public TinyWorkload {
 public:
  struct Size {
    int64_t num_layers = 2;
    int64_t tokens = kTinyTokens;
    // Above 0: of DecoderConfig, in boosted runs, which also recompute activations.
    int64_t head_chunks = 0;
  };
  LmWorkload(TinyKind kind, bool tied) : LmWorkload(kind, tied, Size{}) {}
  LmWorkload(TinyKind kind, bool tied, const Size& size)
      : TinyWorkload(kind), tied_(tied), size_(size) {}
  std::unique_ptr<nn::Module> MakeModel() const override { return Make(size_.head_chunks); }
  // Without chunks MakeModel(), also of a derived class.
  std::unique_ptr<nn::Module> MakePlainModel() const override {
    return has_chunks() ? Make(0) : MakeModel();
  }
  bool has_chunks() const { return size_.head_chunks > 0; }
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override {
    return TinyBatch(context, range, size_.tokens);
  }

 private:
  std::unique_ptr<nn::Module> Make(int64_t head_chunks) const;

  bool tied_;
  Size size_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_TINY_MODEL_H_
