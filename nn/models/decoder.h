// SPDX-License-Identifier: Apache-2.0

// Decoder: a causal language model of any of the supported families (GPT-2, Llama, Mistral, Qwen2,
// Qwen3, Gemma, Gemma 2, Phi-3, OLMo 2, GPT-NeoX, OPT; with experts Mixtral, Qwen2-MoE, Qwen3-MoE),
// which differ in options. The names of its parameters are those of the Hugging Face hub.
//
//   APOGEE_ASSIGN_OR_RETURN(nn::HfModel hf, nn::MakeHfModel(json, path));     // from a config.json
//   Tensor logits = (*hf.module)(tokens);             // i64 [B, T] -> [B, T, vocab_size]
//   // Packed documents; starts: i64 [B, T], where each token's document begins.
//   Tensor logits = (*hf.module)({{"tokens", tokens}, {"starts", starts}}).at("logits");
//
// A token outside the vocabulary or T above max_tokens throws Error.
#ifndef APOGEE_NN_MODELS_DECODER_H_
#define APOGEE_NN_MODELS_DECODER_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/nn/chain.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/models/transformer/block_config.h"

namespace apogee::nn {

// Full names of the modules.
struct DecoderNames {
  std::string tokens = "model.embed_tokens";
  std::string positions = {};  // "": no learned positions
  std::string dropout = {};    // behind the embeddings; "": none
  std::string layers = "model.layers";
  std::string norm = "model.norm";  // "": none
  std::string head = "lm_head";
  // Between embeddings and layers of other sizes.
  std::string project_in = {}, project_out = {};
};

struct DecoderConfig {
  std::string model_type = "llama";
  int64_t vocab_size = 32000;
  int64_t num_layers = 32;
  // Tokens that a sequence may have; with learned positions the size of their table.
  int64_t max_tokens = 2048;
  BlockConfig block = BlockConfig();
  // If not empty: BlockConfig::window and BlockConfig::attention_scale of each layer.
  std::vector<int64_t> windows = {};
  std::vector<double> attention_scales = {};
  // Layers without BlockConfig::moe, in a model whose other layers have it; ascending.
  std::vector<int64_t> dense_layers = {};
  int64_t embedding_size = 0;      // 0: the hidden size
  double embedding_scale = 1;      // Gemma: sqrt(hidden_size)
  int64_t first_position_row = 0;  // of the table of positions; OPT: 2
  double logits_soft_cap = 0;      // above 0: logits become cap * tanh(logits / cap)
  // Lookups of this token give its embedding no gradient, as torch's padding_idx; -1: none.
  int64_t padding_id = -1;
  bool tie_word_embeddings = false;
  // Activation checkpointing: keep only each layer's input and recompute the layer in backward.
  bool recompute = false;
  // Above 0: in training the head's product and the cross entropy are computed together, over so
  // many chunks of tokens, and whole logits never exist. The model then returns logits that only a
  // cross entropy and autograd::WholeLogits can read; in evaluation, and while no graph is
  // recorded, they are computed as without it.
  int64_t head_chunks = 0;
  DecoderNames names = DecoderNames();
  // The model does not use these: they are read from config.json and written back.
  TokenIds token_ids = NoTokenIds();
};

class TransformerBlock;

class Decoder : public Chain, public Configured {
 public:
  // Throws Error that lists every invalid setting.
  explicit Decoder(const DecoderConfig& config);
  const DecoderConfig& decoder_config() const { return config_; }
  void DescribeConfig(ConfigTexts& texts) const override;
  bool takes_documents() const override { return true; }

 protected:
  // One piece each: the embeddings, every layer, the head.
  std::vector<Piece> MakePieces() override;

 private:
  Tensor Embed(const Tensor& tokens);
  Tensor Positions(const Tensor& tokens) const;
  Tensor Head(const Tensor& x);

  const DecoderConfig config_;
  std::shared_ptr<Embedding> tokens_, positions_;
  std::shared_ptr<Dropout> drop_;
  std::shared_ptr<Linear> project_in_, project_out_;
  std::vector<std::shared_ptr<TransformerBlock>> layers_;
  std::shared_ptr<Module> norm_;
  std::shared_ptr<Linear> head_;  // tied or not
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_DECODER_H_
