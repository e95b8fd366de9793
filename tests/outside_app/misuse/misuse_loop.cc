// SPDX-License-Identifier: Apache-2.0

// Loops that leave out what boost returned, or that use it otherwise than they should.
#include "apogee/apogee.h"
#include "misuse_cases.h"

namespace outside {
namespace {

namespace optim = apogee::optim;
using apogee::Boosted;
using apogee::Booster;
using apogee::Tensor;

// Not boosted.criterion, though logits may be cut.
void RawCriterion(RankSetup& rank) {
  const apogee::nn::CrossEntropyLoss cross_entropy;
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted = booster.boost(*rank.model, optimizer, {.criterion = cross_entropy});
  const apogee::data::Batch batch = rank.Batch();
  booster.backward(cross_entropy(boosted.model(batch.inputs), batch.targets), optimizer);
}

void LossThatIsNoScalar(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted = booster.boost(*rank.model, optimizer);
  booster.backward(boosted.model(rank.Batch().inputs), optimizer);
}

void WithoutBoost(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const apogee::data::Batch batch = rank.Batch();
  const Tensor logits = (*rank.model)(batch.inputs);
  booster.backward(apogee::nn::CrossEntropyLoss()(logits, batch.targets), optimizer);
}

void BackwardWithoutBooster(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  apogee::autograd::Backward(rank.Loss(boosted));
  boosted.optimizer.step();
}

void BackwardTwice(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  const Tensor loss = rank.Loss(boosted);
  booster.backward(loss, optimizer);
  booster.backward(loss, optimizer);
}

void SaveBeforeBoost(RankSetup& rank) {
  Booster booster(rank.plugin->plugin());
  apogee::OkOrThrow(booster.save_training_state(rank.Folder(), {.step = 1}));
}

// Of a gradient that this rank has given away.
void ReadGradient(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = apogee::nn::CrossEntropyLoss()});
  booster.backward(rank.Loss(boosted), boosted.optimizer);
  rank.model->Parameters()[1]->grad().ToVector<double>();
}

}  // namespace

std::vector<MisuseCase> LoopMistakes() {
  return {{"raw_criterion", "tp2z0", "boosted.criterion", &RawCriterion},
          {"raw_criterion", "tp2z3", "boosted.criterion", &RawCriterion},
          {"loss_that_is_no_scalar", "single", "scalar", &LossThatIsNoScalar},
          {"loss_that_is_no_scalar", "ddp", "must be a scalar", &LossThatIsNoScalar},
          {"loss_that_is_no_scalar", "zero2", "must be a scalar", &LossThatIsNoScalar},
          {"loss_that_is_no_scalar", "local_sgd", "scalar", &LossThatIsNoScalar},
          {"without_boost", "ddp", "boost", &WithoutBoost},
          {"backward_without_booster", "ddp", "booster.backward", &BackwardWithoutBooster},
          {"backward_without_booster", "zero2", "booster.backward", &BackwardWithoutBooster},
          {"backward_twice", "ddp", "backward", &BackwardTwice},
          {"save_before_boost", "ddp", "boost", &SaveBeforeBoost},
          {"read_gradient", "zero2", "a plugin shards the gradients", &ReadGradient}};
}

}  // namespace outside
