// SPDX-License-Identifier: Apache-2.0

// GPT-2 (Radford et al., 2019) with Hugging Face parameter names: learned positions, pre-norm
// blocks, Conv1D weights [in, out], tanh GELU, the head tied to the token table.
//
//   nn::Gpt2 model({.vocab_size = 256, .n_positions = 128, .n_embd = 128,
//                   .n_layer = 4, .n_head = 4});
//   model.Initialize(context, {.seed = 1});
//   Tensor logits = model(tokens);     // i64 [B, T], T <= n_positions -> [B, T, vocab_size]
//   // Packed documents; starts: i64 [B, T], where each token's document begins.
//   Tensor logits = model({{"tokens", tokens}, {"starts", starts}}).at("logits");
//
// A token outside the vocabulary or a sequence longer than n_positions throws Error.
#ifndef APOGEE_NN_MODELS_GPT2_H_
#define APOGEE_NN_MODELS_GPT2_H_

#include "apogee/nn/models/decoder.h"

namespace apogee::nn {

struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  // After the embedding and at the end of each residual branch (not on attention weights).
  double dropout = 0.0;
  double layer_norm_epsilon = 1e-5;
  bool tie_word_embeddings = true;
  // Activation checkpointing: keep only each block's input and recompute the block in backward.
  bool recompute = false;
  // BlockConfig::recompute_activations: a cheaper form, which keeps more. Not with recompute.
  bool recompute_activations = false;
  // DecoderConfig::head_chunks: above 0, the loss is computed over so many chunks of tokens.
  int64_t head_chunks = 0;
  // The model does not use these: they are read from config.json and written back.
  TokenIds token_ids = NoTokenIds();
};

// The options of nn::Decoder for a GPT-2.
DecoderConfig DecoderConfigOf(const Gpt2Config& config);

class Gpt2 : public Decoder {
 public:
  // Throws Error that lists every invalid setting.
  explicit Gpt2(const Gpt2Config& config) : Decoder(DecoderConfigOf(config)), config_(config) {}
  const Gpt2Config& config() const { return config_; }

 private:
  const Gpt2Config config_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_GPT2_H_
