// SPDX-License-Identifier: Apache-2.0

#include "misuse_setup.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

namespace outside {

using apogee::Tensor;

RankSetup::RankSetup(const apogee::comm::World& world, const std::string& plugin)
    : world(world),
      model(std::make_unique<LanguageModel>(config)),
      plugin(std::make_unique<NamedPlugin>(plugin, world, PluginSettings{.model = config})) {
  model->Initialize(context(), {.seed = 1});
  data_rank = this->plugin->plugin().data_rank();
}

apogee::data::Batch RankSetup::Batch() const {
  constexpr int64_t kSamples = 2, kTokens = 8;
  std::vector<int64_t> inputs, targets;
  for (int64_t i = 0; i < kSamples * kTokens; ++i) {
    inputs.push_back((i * 7 + data_rank * 13) % config.vocab);
    targets.push_back((inputs.back() + 1) % config.vocab);
  }
  return {Tensor::FromVector<int64_t>(inputs, {kSamples, kTokens}, context()),
          Tensor::FromVector<int64_t>(targets, {kSamples, kTokens}, context())};
}

Tensor RankSetup::Loss(const apogee::Boosted& boosted) const {
  const apogee::data::Batch batch = Batch();
  return boosted.criterion(boosted.model(batch.inputs), batch.targets);
}

void RankSetup::Train(apogee::Booster& booster, const apogee::Boosted& boosted, int steps) const {
  for (int step = 0; step < steps; ++step) {
    booster.backward(Loss(boosted), boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
}

std::string RankSetup::Folder() const {
  return std::filesystem::temp_directory_path() / ("outside_app_" + std::to_string(getpid()));
}

}  // namespace outside
