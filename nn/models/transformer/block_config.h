// SPDX-License-Identifier: Apache-2.0

// The options in which the blocks of transformers differ, and the names of a block's layers in the
// files of the Hugging Face hub.
//
//   nn::BlockConfig llama{.hidden_size = 64, .intermediate_size = 172, .num_heads = 4,
//                         .num_kv_heads = 2, .head_dim = 16};
//   auto block = std::make_shared<nn::TransformerBlock>(llama);
//   Tensor y = (*block)(x);                                  // [B, T, hidden_size], as x
//
// Names are relative to the block; dots make containers. The defaults are those of Llama.
#ifndef APOGEE_NN_MODELS_TRANSFORMER_BLOCK_CONFIG_H_
#define APOGEE_NN_MODELS_TRANSFORMER_BLOCK_CONFIG_H_

#include <cstdint>
#include <string>

#include "apogee/nn/attention.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/moe/moe_config.h"

namespace apogee::nn {

enum class NormKind { kRmsNorm, kLayerNorm };

// Norms of queries and keys.
enum class HeadNorm {
  kNone,
  kPerHead,   // of each head alone: weights [head_dim] (Qwen3)
  kAllHeads,  // of all heads together: weights [heads * head_dim] (OLMo 2)
};

enum class QkvLayout {
  kSeparate,  // three layers
  kSections,  // one layer with the rows of all q, then all k, then all v (GPT-2, Phi-3)
  kByHead,    // one layer with q, k and v of head 0, then of head 1, … (GPT-NeoX)
};

// The norms around attention or the MLP, by name; "": there is none. With the branch f:
//   y = x + after(f(before(x))),  then after_add(y)
struct BranchNorms {
  std::string before, after, after_add;
};

struct BlockNames {
  BranchNorms attention_norms{.before = "input_layernorm", .after = {}, .after_add = {}};
  BranchNorms mlp_norms{.before = "post_attention_layernorm", .after = {}, .after_add = {}};
  // True: norms are listed behind attention and MLP, as in Llama; else before each, as in GPT-2.
  bool norms_last = true;
  // The modules that hold the layers of attention and of the MLP; "": the block itself.
  std::string attention = "self_attn", mlp = "mlp";
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj";
  std::string qkv = {};  // instead of q, k and v
  std::string out = "self_attn.o_proj";
  std::string q_norm = "self_attn.q_norm", k_norm = "self_attn.k_norm";
  std::string core = "self_attn.core";
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj";
  std::string gate_up = {};  // instead of gate and up
  std::string down = "mlp.down_proj";
};

struct BlockConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;

  NormKind norm = NormKind::kRmsNorm;
  double norm_eps = 1e-6;
  // Gemma's files hold the weights of RMS norms minus one; then this is 1.
  double norm_weight_offset = 0;
  HeadNorm head_norm = HeadNorm::kNone;
  // True: y = x + attention(norm(x)) + mlp(norm(x)) (GPT-NeoX); else one after the other.
  bool parallel_residual = false;

  QkvLayout qkv_layout = QkvLayout::kSeparate;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool has_rotary = true;
  RotarySettings rotary = {};
  // Of the scores; 0: 1 / sqrt(head_dim).
  double attention_scale = 0;
  // Above 0: the scores s become cap * tanh(s / cap) (Gemma 2).
  double attention_soft_cap = 0;
  // Above 0: a token sees only the last `window` tokens, itself included.
  int64_t window = 0;
  bool causal = true;

  // Gated: activation(gate(x)) * up(x); else activation(up(x)).
  bool gated_mlp = true;
  Activation activation = Activation::kSilu;
  // With experts: a mixture of experts (nn::Moe) under the name of the MLP, in place of it.
  MoeConfig moe = MoeConfig();
  // Of weights: kInOut for GPT-2's Conv1D.
  WeightLayout weight_layout = WeightLayout::kOutIn;

  // Keep neither the results of norms nor those of activations: backward computes the same bits
  // again from tensors that are kept anyway.
  bool recompute_activations = false;

  // At the end of both branches. With has_dropout the block has the layer, even of probability 0.
  bool has_dropout = false;
  double dropout = 0;
  Init init = Init::Normal(0, 0.02);
  Init residual_init = Init::Normal(0, 0.02);  // of the last layer of each branch

  BlockNames names = BlockNames();
};

// The options that BERT and ViT share, and the names that both give to layers.
BlockConfig EncoderBlock();

// The problems of a configuration, one a line with a leading "\n  "; "": there is none.
std::string BlockProblems(const BlockConfig& config);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TRANSFORMER_BLOCK_CONFIG_H_
