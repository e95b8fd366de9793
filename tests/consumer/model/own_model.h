// SPDX-License-Identifier: Apache-2.0

// A model of residual blocks over words, and its plan for tensor parallelism.
//
//   OwnModel model(/*vocabulary=*/11, /*dim=*/6);
//   HybridParallelPlugin plugin(world, training, {.tp_size = 2, .plan = OwnPlan()});
#ifndef OWN_MODEL_H_
#define OWN_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/apogee.h"

namespace own_model {

using namespace apogee;

class Block : public nn::Module {
 public:
  explicit Block(int64_t d)
      : norm_(Register("norm", std::make_shared<nn::LayerNorm>(d))),
        up_(Register("up", std::make_shared<nn::Linear>(
                               d, 4 * d, nn::LinearOptions{.activation = Activation::kGeluTanh}))),
        drop_(Register("drop", std::make_shared<nn::Dropout>(0.1))),
        down_(Register("down", std::make_shared<nn::Linear>(4 * d, d))) {}

  Tensor Forward(const Tensor& x) override {
    return autograd::Add(x, (*down_)((*drop_)((*up_)((*norm_)(x)))));
  }

 private:
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Linear> up_;
  std::shared_ptr<nn::Dropout> drop_;
  std::shared_ptr<nn::Linear> down_;
};

// tokens [samples, n] -> logits [samples, n, vocabulary].
class OwnModel : public nn::Module {
 public:
  OwnModel(int64_t vocabulary, int64_t d)
      : embed_(Register("embed", std::make_shared<nn::Embedding>(vocabulary, d))) {
    const auto blocks = Register("blocks", std::make_shared<nn::Container>());
    for (int i = 0; i < 2; ++i) {
      blocks_.push_back(blocks->Register(std::to_string(i), std::make_shared<Block>(d)));
    }
    head_ = Register("head", std::make_shared<nn::Linear>(d, vocabulary));
  }

  Tensor Forward(const Tensor& tokens) override {
    Tensor x = (*embed_)(tokens);
    for (const auto& block : blocks_) x = (*block)(x);
    return (*head_)(x);
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<nn::Linear> head_;
};

inline nn::parallel::ParallelPlan OwnPlan() {
  using enum nn::parallel::ParallelStyle;
  return {.name = "own model",
          .rules = {{.pattern = "embed", .style = kVocabulary},
                    {.pattern = "blocks.*.up", .style = kColumn},
                    {.pattern = "blocks.*.drop", .style = kDropout},
                    {.pattern = "blocks.*.down", .style = kRow},
                    {.pattern = "head", .style = kVocabulary}},
          .output_module = "head"};
}

}  // namespace own_model

#endif  // OWN_MODEL_H_
