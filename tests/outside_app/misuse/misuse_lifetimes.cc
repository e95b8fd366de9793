// SPDX-License-Identifier: Apache-2.0

// Objects that go before what uses them, or that a second one takes over.
#include <memory>
#include <tuple>

#include "apogee/apogee.h"
#include "misuse_cases.h"

namespace outside {
namespace {

namespace optim = apogee::optim;
using apogee::Boosted;
using apogee::Booster;

std::unique_ptr<optim::AdamW> MakeAdamW(const LanguageModel& model) {
  return std::make_unique<optim::AdamW>(model.Parameters(), optim::AdamWOptions{});
}

void SaveAfterOptimizer(RankSetup& rank) {
  std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 1);
  optimizer.reset();
  apogee::OkOrThrow(booster.save_training_state(rank.Folder(), {.step = 1}));
}

void BackwardAfterOptimizer(RankSetup& rank) {
  std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 1);
  optimizer.reset();
  const std::unique_ptr<optim::AdamW> second = MakeAdamW(*rank.model);
  booster.backward(rank.Loss(boosted), *second);
}

void BackwardAfterModel(RankSetup& rank) {
  std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  const apogee::Tensor loss = rank.Loss(boosted);
  optimizer.reset();
  rank.model.reset();
  const auto weight = std::make_shared<apogee::autograd::Parameter>(
      "w", apogee::Tensor::Zeros({2}, apogee::DType::kF32, rank.context()));
  optim::Sgd other({weight}, {});
  booster.backward(loss, other);
}

void StepAfterPlugin(RankSetup& rank) {
  const std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  {
    Booster booster(rank.plugin->plugin());
    const Boosted boosted =
        booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
    rank.Train(booster, boosted, 1);
  }
  const apogee::data::Batch batch = rank.Batch();
  rank.plugin.reset();
  apogee::autograd::Backward(
      apogee::nn::CrossEntropyLoss()((*rank.model)(batch.inputs), batch.targets));
  optimizer->step();
}

void BoostTwice(RankSetup& rank) {
  const std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  Booster booster(rank.plugin->plugin());
  std::ignore =
      booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  std::ignore =
      booster.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
}

void TwoPlugins(RankSetup& rank) {
  const std::unique_ptr<optim::AdamW> optimizer = MakeAdamW(*rank.model);
  NamedPlugin second("ddp", rank.world, {.model = rank.config});
  Booster first(rank.plugin->plugin()), other(second.plugin());
  std::ignore = first.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  const Boosted boosted =
      other.boost(*rank.model, *optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  rank.Train(other, boosted, 1);
}

}  // namespace

std::vector<MisuseCase> LifetimeMistakes() {
  return {{"save_after_optimizer", "ddp", "optimizer that boost returned", &SaveAfterOptimizer},
          {"save_after_optimizer", "gemini", "optimizer that boost returned", &SaveAfterOptimizer},
          {"backward_after_optimizer", "zero2", "has been destroyed", &BackwardAfterOptimizer},
          {"backward_after_model", "zero2", "has been destroyed", &BackwardAfterModel},
          {"backward_after_model", "gemini", "has been destroyed", &BackwardAfterModel},
          {"backward_after_model", "tp2z0", "has been destroyed", &BackwardAfterModel},
          {"step_after_plugin", "ddp", "plugin", &StepAfterPlugin},
          {"step_after_plugin", "zero2", "plugin", &StepAfterPlugin},
          {"step_after_plugin", "local_sgd", "keep it as long as the loop", &StepAfterPlugin},
          {"boost_twice", "zero1", "boost", &BoostTwice},
          {"two_plugins", "zero2", "plugin", &TwoPlugins}};
}

}  // namespace outside
