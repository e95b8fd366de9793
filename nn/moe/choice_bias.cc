// SPDX-License-Identifier: Apache-2.0

// UpdateChoiceBias (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.1.2). docs/moe.md has the formula.
#include <cmath>
#include <numeric>

#include "apogee/nn/moe/moe.h"

namespace apogee::nn {
void UpdateChoiceBias(Module& model, double rate) {
  APOGEE_CHECK(std::isfinite(rate) && rate >= 0, "UpdateChoiceBias: rate is ", rate,
               "; it must be a finite number of at least 0");
  std::vector<Moe*> layers;  // of this pipeline stage
  bool has_bias = false;
  for (Moe* layer : MoeLayers(model)) {
    if (layer->choice_bias() == nullptr) continue;
    has_bias = true;
    if (layer->choice_bias()->is_here()) layers.push_back(layer);
  }
  APOGEE_CHECK(has_bias,
               "UpdateChoiceBias: the model has no mixture of experts with MoeConfig::choice_bias");
  if (layers.empty()) return;
  if (layers[0]->choice_bias()->data().context()->is_dry()) return;
  std::vector<double> choices;  // of the layers, one after the other
  for (Moe* layer : layers) {
    const std::vector<int64_t> own = layer->TakeChoices();
    choices.insert(choices.end(), own.begin(), own.end());
  }
  choices = layers[0]->SumOverRanks(choices);
  auto next = choices.cbegin();
  for (Moe* layer : layers) {
    const auto end = next + static_cast<std::ptrdiff_t>(layer->config().num_experts);
    const double sum = std::accumulate(next, end, 0.0);
    const Tensor& data = layer->choice_bias()->data();
    std::vector<double> bias = data.ToVector<double>();
    for (double& value : bias) {
      // The sign of the mean minus the count, in whole numbers.
      const double below = sum - static_cast<double>(bias.size()) * *next++;
      if (below != 0) value += std::copysign(rate, below);
    }
    data.SetValues(bias);
  }
}

}  // namespace apogee::nn
