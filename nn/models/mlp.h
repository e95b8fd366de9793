// SPDX-License-Identifier: Apache-2.0

// A multi-layer perceptron: linear layers with an activation between them.
//
//   nn::Mlp model({.sizes = {784, 256, 10}, .activation = Activation::kRelu});
//   Tensor logits = model(x);          // [.., 784] -> [.., 10]; "layers.0.weight", …
#ifndef APOGEE_NN_MODELS_MLP_H_
#define APOGEE_NN_MODELS_MLP_H_

#include "apogee/nn/chain.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/layers.h"

namespace apogee::nn {

struct MlpConfig {
  // Input size, hidden sizes, output size: at least two.
  std::vector<int64_t> sizes;
  Activation activation = Activation::kRelu;
};

class Mlp : public Chain, public Configured {
 public:
  explicit Mlp(const MlpConfig& config);
  const MlpConfig& config() const { return config_; }
  void DescribeConfig(ConfigTexts& texts) const override;

 protected:
  // One piece per layer.
  std::vector<Piece> MakePieces() override;

 private:
  MlpConfig config_;
  std::vector<std::shared_ptr<Linear>> layers_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_MLP_H_
