// SPDX-License-Identifier: Apache-2.0

// Tiny decoders with a mixture of experts, whose routing is difficult for expert parallelism.
//
//   MoeWorkload work(MoeKind::kIdle);
//   std::unique_ptr<nn::Module> model = work.MakeModel();
#ifndef APOGEE_MATRIX_MODELS_MOE_MODEL_H_
#define APOGEE_MATRIX_MODELS_MOE_MODEL_H_

#include <memory>

#include "apogee/matrix/models/tiny_model.h"

namespace apogee::matrix {

enum class MoeKind {
  kPlain,  // 8 experts, 2 of them per token, and a shared one
  kIdle,   // no token ever chooses the last two experts
  kOne,    // all tokens choose one expert, and experts are recomputed
  kRare,   // 16 experts, one per token: some micro-batches and ranks have none for an expert
  kAux,    // with auxiliary losses, which are added to the criterion's
};

// In f64 only: in 16 bits, ranks that add in another order can choose other experts.
class MoeWorkload : public TinyWorkload {
 public:
  explicit MoeWorkload(MoeKind kind) : TinyWorkload(TinyKind::kLlama), moe_(kind) {}
  std::unique_ptr<nn::Module> MakeModel() const override;
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override;
  bool is_f64_only() const override { return true; }
  // A dry run takes equal loads of all experts.
  bool reads_values() const override { return true; }
  // The auxiliary loss of a micro-batch is not the mean of its samples' own.
  bool mixes_samples() const override { return moe_ == MoeKind::kAux; }
  apogee::Auxiliary Auxiliary() const override;
  // The gradient of an expert with one token has one direction; a second one would be noise.
  LowRank low_rank() const override {
    return {.rank = moe_ == MoeKind::kRare ? 1 : 2, .update_proj_gap = 10};
  }
  LowRank low_rank_of_few_targets() const override { return {.rank = 1, .update_proj_gap = 10}; }

 private:
  const MoeKind moe_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_MOE_MODEL_H_
