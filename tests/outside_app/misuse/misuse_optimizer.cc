// SPDX-License-Identifier: Apache-2.0

// Optimizers that are not the boosted one, or whose options make no sense.
#include <span>
#include <tuple>
#include <vector>

#include "adan.h"
#include "apogee/apogee.h"
#include "misuse_cases.h"

namespace outside {
namespace {

namespace optim = apogee::optim;
using apogee::Boosted;
using apogee::Booster;

void BackwardForAnother(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  optim::Sgd other(rank.model->Parameters(), {.lr = 0.1});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  booster.backward(rank.Loss(boosted), other);
  other.step();
}

void OfAnotherModel(RankSetup& rank) {
  LanguageModel another(rank.config);
  another.Initialize(rank.context());
  optim::AdamW optimizer(another.Parameters(), {});
  Booster booster(rank.plugin->plugin());
  std::ignore =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
}

void NegativeRate(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  optimizer.set_lr(0, -1);
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 1);
}

// Does not say that it works on parts of tensors.
struct WholeAdanRule : outside::AdanRule {
  using AdanRule::AdanRule;
  optim::OptimizerTraits traits() override { return {}; }
};
using WholeAdan = optim::OptimizerOf<WholeAdanRule>;

void WithoutShards(RankSetup& rank) {
  WholeAdan optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  std::ignore =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
}

struct FailingAdanRule : outside::AdanRule {
  using AdanRule::AdanRule;
  void Update(const optim::RuleStep& /*step*/) override { apogee::Throw("this update fails"); }
};
using FailingAdan = optim::OptimizerOf<FailingAdanRule>;

void FailingUpdate(RankSetup& rank) {
  FailingAdan optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 1);
}

}  // namespace

std::vector<MisuseCase> OptimizerMistakes() {
  return {{"backward_for_another", "single", "boosted.optimizer", &BackwardForAnother},
          {"backward_for_another", "ddp", "boosted.optimizer", &BackwardForAnother},
          {"backward_for_another", "zero2", "boosted.optimizer", &BackwardForAnother},
          {"backward_for_another", "tp2z0", "boosted.optimizer", &BackwardForAnother},
          {"of_another_model", "zero1", "model", &OfAnotherModel},
          {"negative_rate", "ddp", "lr is -1, must be at least 0", &NegativeRate},
          {"without_shards", "zero2", "adan", &WithoutShards},
          {"failing_update", "zero2", "this update fails", &FailingUpdate}};
}

}  // namespace outside
