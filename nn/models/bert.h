// SPDX-License-Identifier: Apache-2.0

// BERT (Devlin et al., 2018) with the head of masked language modelling, under Hugging Face names.
//
//   APOGEE_ASSIGN_OR_RETURN(nn::HfModel hf, nn::MakeHfModel(json, path));   // "model_type": "bert"
//   Tensor logits = (*hf.module)(tokens);             // i64 [B, T] -> [B, T, vocab_size]
//   // With padding, and two texts in a sequence:
//   Tensor logits = (*hf.module)({{"tokens", tokens}, {"attention_mask", mask},
//                                 {"token_type_ids", types}}).at("logits");
//
// attention_mask i64 [B, T]: 1 for a token, 0 for padding, which no token attends to.
// token_type_ids i64 [B, T]: in [0, type_vocab_size); without it all are 0. Targets of the loss are
// not shifted. A token outside the vocabulary or T above max_tokens throws Error. Pipelines and
// sequence parallelism take tokens only.
#ifndef APOGEE_NN_MODELS_BERT_H_
#define APOGEE_NN_MODELS_BERT_H_

#include <memory>
#include <vector>

#include "apogee/nn/chain.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/models/transformer/block_config.h"

namespace apogee::nn {

struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t num_layers = 12;
  int64_t max_tokens = 512;
  int64_t type_vocab_size = 2;
  BlockConfig block = BlockConfig();  // of BertBlock
  // Lookups of this token give its embedding no gradient, as torch's padding_idx; -1: none.
  int64_t padding_id = 0;
  // Activation checkpointing: keep only each layer's input and recompute the layer in backward.
  bool recompute = false;
};

// The options of a block that BERT's sizes do not determine: norms behind the additions, biases,
// attention in both directions.
BlockConfig BertBlock();

class TransformerBlock;

class Bert : public Chain, public Configured {
 public:
  // Throws Error that lists every invalid setting.
  explicit Bert(const BertConfig& config);
  const BertConfig& config() const { return config_; }
  void DescribeConfig(ConfigTexts& texts) const override;
  NamedTensors ForwardNamed(const NamedTensors& inputs) override;

 protected:
  // One piece each: the embeddings, every layer, the head.
  std::vector<Piece> MakePieces() override;

 private:
  Tensor Embed(const Tensor& tokens);
  Tensor Head(const Tensor& x);

  const BertConfig config_;
  std::shared_ptr<Embedding> tokens_, positions_, types_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<Dropout> drop_;
  std::vector<std::shared_ptr<TransformerBlock>> layers_;
  std::shared_ptr<Linear> transform_;
  std::shared_ptr<LayerNorm> transform_norm_;
  std::shared_ptr<Linear> decoder_;  // tied
  Tensor token_types_;               // of the call that runs; undefined: all 0
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_BERT_H_
