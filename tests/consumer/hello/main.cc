// SPDX-License-Identifier: Apache-2.0

// Uses the installed library as a program of its own would: a boosted loop that learns XOR. Nothing
// of the source tree is seen.
#include <cstdio>

#include "apogee/apogee.h"

int main() {
  using namespace apogee;
  const ContextPtr context = CpuContext({.num_threads = 2});
  const Tensor x = Tensor::FromVector<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}, context);
  const Tensor y = Tensor::FromVector<int64_t>({0, 1, 1, 0}, {4}, context);

  nn::Mlp model({.sizes = {2, 16, 2}, .activation = Activation::kTanh});
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.05});
  SingleRankPlugin plugin;
  Booster booster(plugin);
  auto boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  double loss_value = 0;
  for (int step = 0; step < 200; ++step) {
    const Tensor loss = boosted.criterion(boosted.model(x), y);
    loss_value = loss.Item();
    booster.backward(loss, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  std::printf("consumer: loss %.2g after 200 boosted steps\n", loss_value);
  return loss_value < 0.05 ? 0 : 1;
}
