// SPDX-License-Identifier: Apache-2.0

// ViT (Dosovitskiy et al., 2020), which classifies images, under Hugging Face names.
//
//   APOGEE_ASSIGN_OR_RETURN(nn::HfModel hf, nn::MakeHfModel(json, path));   // "model_type": "vit"
//   Tensor logits = (*hf.module)(pixels);      // [B, channels, height, width] -> [B, num_labels]
//   Tensor loss = nn::CrossEntropyLoss()(logits, labels);                   // labels i64 [B]
//
// An image of another size than the configuration's throws Error. Sequence parallelism refuses the
// model: its tokens come from a convolution.
#ifndef APOGEE_NN_MODELS_VIT_H_
#define APOGEE_NN_MODELS_VIT_H_

#include <memory>
#include <vector>

#include "apogee/nn/chain.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/models/transformer/block_config.h"

namespace apogee::nn {

struct VitConfig {
  int64_t image_size = 224;  // height and width
  int64_t patch_size = 16;   // divides image_size
  int64_t num_channels = 3;
  int64_t num_labels = 2;
  int64_t num_layers = 12;
  BlockConfig block = BlockConfig();  // of VitBlock
  // Activation checkpointing: keep only each layer's input and recompute the layer in backward.
  bool recompute = false;
};

// The options of a block that ViT's sizes do not determine: norms before the branches, biases,
// attention in both directions.
BlockConfig VitBlock();

class TransformerBlock;

class Vit : public Chain, public Configured {
 public:
  // Throws Error that lists every invalid setting.
  explicit Vit(const VitConfig& config);
  const VitConfig& config() const { return config_; }
  void DescribeConfig(ConfigTexts& texts) const override;

 protected:
  // One piece each: the embeddings, every layer, the head.
  std::vector<Piece> MakePieces() override;

 private:
  class Embeddings;

  const VitConfig config_;
  std::shared_ptr<Embeddings> embeddings_;
  std::vector<std::shared_ptr<TransformerBlock>> layers_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<Linear> classifier_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_VIT_H_
