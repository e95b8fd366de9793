// SPDX-License-Identifier: Apache-2.0

// Llama (Touvron et al., 2023) with Hugging Face parameter names: RMS norm, rotate-half rotary
// positions, grouped-query attention, SwiGLU, no biases.
//
//   nn::Llama model({.vocab_size = 256, .hidden_size = 128, .intermediate_size = 344,
//                    .num_hidden_layers = 4, .num_attention_heads = 4, .num_key_value_heads = 2});
//   model.Initialize(context, {.seed = 1});
//   Tensor logits = model(tokens);     // i64 [B, T] -> [B, T, vocab_size]
//   // Packed documents; starts: i64 [B, T], where each token's document begins.
//   Tensor logits = model({{"tokens", tokens}, {"starts", starts}}).at("logits");
//
// A token outside the vocabulary or T above max_position_embeddings throws Error.
#ifndef APOGEE_NN_MODELS_LLAMA_H_
#define APOGEE_NN_MODELS_LLAMA_H_

#include "apogee/nn/models/decoder.h"

namespace apogee::nn {

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  // Activation checkpointing: keep only each layer's input and recompute the layer in backward.
  bool recompute = false;
  // BlockConfig::recompute_activations: a cheaper form, which keeps more. Not with recompute.
  bool recompute_activations = false;
  // DecoderConfig::head_chunks: above 0, the loss is computed over so many chunks of tokens.
  int64_t head_chunks = 0;
  // The model does not use these: they are read from config.json and written back.
  TokenIds token_ids = NoTokenIds();
};

// The options of nn::Decoder for a Llama.
DecoderConfig DecoderConfigOf(const LlamaConfig& config);

class Llama : public Decoder {
 public:
  // Throws Error that lists every invalid setting.
  explicit Llama(const LlamaConfig& config) : Decoder(DecoderConfigOf(config)), config_(config) {}
  const LlamaConfig& config() const { return config_; }

 private:
  const LlamaConfig config_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_LLAMA_H_
