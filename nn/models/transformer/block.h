// SPDX-License-Identifier: Apache-2.0

// TransformerBlock: attention and an MLP on a residual stream, with the options of BlockConfig.
//
//   auto block = std::make_shared<nn::TransformerBlock>(config);
//   Tensor y = (*block)(x);                                  // [B, T, hidden_size], as x
//
// Throws Error that lists every invalid option.
#ifndef APOGEE_NN_MODELS_TRANSFORMER_BLOCK_H_
#define APOGEE_NN_MODELS_TRANSFORMER_BLOCK_H_

#include <memory>

#include "apogee/nn/models/transformer/block_config.h"

namespace apogee::nn {

class PathRegister;

class TransformerBlock : public Module {
 public:
  explicit TransformerBlock(const BlockConfig& config);
  Tensor Forward(const Tensor& x) override;

 private:
  // The norms around one branch; null: none.
  struct Norms {
    std::shared_ptr<Module> before, after, after_add;
  };
  class Branch;

  void AddAttention(PathRegister& paths);
  void AddMlp(PathRegister& paths);
  Norms AddNorms(PathRegister& paths, const BranchNorms& names) const;

  Tensor Attend(const Tensor& x) const;
  Tensor RunMlp(const Tensor& x) const;
  Tensor Heads(Linear& projection, Module* norm, const Tensor& x) const;
  ops::Qkv Parts(const Tensor& qkv) const;
  Tensor Rotated(const Tensor& x) const;
  // The end of a branch without its addition.
  Tensor Run(const std::shared_ptr<Module>& branch, const Norms& norms, const Tensor& x);
  Tensor AddTo(const Tensor& x, const Tensor& branch, const Norms& norms) const;

  const BlockConfig config_;
  std::shared_ptr<Module> attention_, mlp_;
  Norms attention_norms_, mlp_norms_;
  std::shared_ptr<Linear> q_, k_, v_, qkv_, out_;
  std::shared_ptr<Module> q_norm_, k_norm_;
  std::shared_ptr<AttentionCore> core_;
  std::shared_ptr<Linear> gate_, up_, gate_up_, down_;
  std::shared_ptr<Dropout> drop_;
};

// A norm of the kind that the block has, of `dim` features.
std::shared_ptr<Module> MakeNorm(const BlockConfig& config, int64_t dim);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TRANSFORMER_BLOCK_H_
