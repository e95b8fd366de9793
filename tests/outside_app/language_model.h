// SPDX-License-Identifier: Apache-2.0

// LanguageModel: embedding, blocks of GRU, windowed attention and MLP, a head tied to the
// embedding.
//
//   LanguageModel model({.vocab = 61});
//   model.Initialize(context, {.seed = 3});
//   Tensor logits = model(tokens);             // i64 [B, T] -> [B, T, vocab]
//
// A chain, so that pipelines can cut it; PlanFor says how tensor parallelism does.
#ifndef OUTSIDE_APP_LANGUAGE_MODEL_H_
#define OUTSIDE_APP_LANGUAGE_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/apogee.h"
#include "apogee/nn/chain.h"

namespace outside {

struct ModelConfig {
  int64_t vocab = 61;  // odd: ranks get unequal parts
  int64_t dim = 16;
  int64_t heads = 4;
  int64_t window = 4;
  int64_t layers = 2;
  double dropout = 0;
};

class LanguageModel : public apogee::nn::Chain {
 public:
  explicit LanguageModel(const ModelConfig& config);

 protected:
  std::vector<apogee::nn::Piece> MakePieces() override;

 private:
  std::shared_ptr<apogee::nn::Embedding> embed_;
  std::shared_ptr<apogee::nn::Dropout> drop_;
  std::vector<std::shared_ptr<apogee::nn::Module>> blocks_;
  std::shared_ptr<apogee::nn::RmsNorm> norm_;
  std::shared_ptr<apogee::nn::Linear> head_;
};

apogee::nn::parallel::ParallelPlan PlanFor(const ModelConfig& config);

}  // namespace outside

#endif  // OUTSIDE_APP_LANGUAGE_MODEL_H_
