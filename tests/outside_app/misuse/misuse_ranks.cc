// SPDX-License-Identifier: Apache-2.0

// Ranks that do not do the same: each must get an error, and rank 0's must name what differs.
#include <memory>
#include <stdexcept>
#include <tuple>

#include "apogee/apogee.h"
#include "local_sgd.h"
#include "misuse_cases.h"

namespace outside {
namespace {

namespace nn = apogee::nn;
namespace optim = apogee::optim;
using apogee::Boosted;
using apogee::Booster;
using apogee::Tensor;

constexpr int kOther = 1;  // the rank that differs

void AnotherModel(RankSetup& rank) {
  ModelConfig config = rank.config;
  if (rank.world.rank() == kOther) config.dim = 32;
  LanguageModel model(config);
  model.Initialize(rank.context());
  optim::AdamW optimizer(model.Parameters(), {});
  Booster booster(rank.plugin->plugin());
  std::ignore = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
}

void AnotherRateAtBoost(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(),
                         {.lr = rank.world.rank() == kOther ? 0.5 : 1e-3});
  Booster booster(rank.plugin->plugin());
  std::ignore = booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
}

void AnotherRateLater(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {.lr = 1e-3});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 1);
  if (rank.world.rank() == kOther) boosted.optimizer.set_lr(0, 0.5);
  rank.Train(booster, boosted, 2);
}

void FewerSteps(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, rank.world.rank() == kOther ? 1 : 2);
  rank.world.group()->Barrier();
}

// A loss of the loop's own, whose means over unequal batches are no mean of the whole batch.
void RawCriterionOfUnevenBatches(RankSetup& rank) {
  const nn::CrossEntropyLoss cross_entropy;
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted = booster.boost(*rank.model, optimizer, {.criterion = cross_entropy});
  const apogee::data::Batch batch = rank.Batch();
  const int64_t samples = rank.world.rank() == kOther ? 1 : 2;
  const Tensor logits = boosted.model(batch.inputs.Slice(0, 0, samples));
  booster.backward(cross_entropy(logits, batch.targets.Slice(0, 0, samples)), optimizer);
  boosted.optimizer.step();
}

void FailingLoss(RankSetup& rank) {
  const auto fails = [&](const Tensor& logits, const Tensor& targets) {
    if (rank.world.rank() == kOther) throw std::runtime_error("this loss fails");
    return nn::CrossEntropyLoss()(logits, targets);
  };
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted = booster.boost(*rank.model, optimizer, {.criterion = fails});
  rank.Train(booster, boosted, 1);
}

void TokenOutsideTheVocabulary(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  apogee::data::Batch batch = rank.Batch();
  if (rank.world.rank() == kOther) {
    batch.inputs =
        Tensor::FromVector<int64_t>(std::vector<int64_t>(16, 70), {2, 8}, rank.context());
  }
  booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets), optimizer);
}

void SaveOnOneRank(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  if (rank.world.rank() == 0) apogee::OkOrThrow(booster.save_model(rank.Folder()));
  rank.Train(booster, boosted, 1);
}

void EvaluateOnOneRank(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  if (rank.world.rank() == 0) {
    const apogee::autograd::NoGradGuard guard;
    boosted.model(rank.Batch().inputs);
  }
  rank.Train(booster, boosted, 1);
}

// Every data-parallel rank has a batch of its own, but ranks that share layers need the same.
void OwnBatchOfSharedLayers(RankSetup& rank) {
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(rank.plugin->plugin());
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const Tensor tokens = Tensor::FromVector<int64_t>(std::vector<int64_t>(16, rank.world.rank()),
                                                    {2, 8}, rank.context());
  booster.backward(boosted.criterion(boosted.model(tokens), tokens), optimizer);
  boosted.optimizer.step();
}

// Between two averages ranks have different weights, of which a checkpoint has one; the plugin does
// not make them the same before a save.
void SaveUnequalReplicas(RankSetup& rank) {
  LocalSgdPlugin plugin(rank.world.group(), {}, {.every = 100});
  optim::AdamW optimizer(rank.model->Parameters(), {});
  Booster booster(plugin);
  const Boosted boosted =
      booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  rank.Train(booster, boosted, 2);
  apogee::OkOrThrow(booster.save_training_state(rank.Folder(), {.step = 2}));
}

}  // namespace

std::vector<MisuseCase> RankMistakes() {
  return {{"another_model", "ddp", "rank 1", &AnotherModel},
          {"another_model", "gemini", "rank 1", &AnotherModel},
          {"another_rate_at_boost", "zero2", "lr", &AnotherRateAtBoost},
          {"another_rate_later", "ddp", "0.5 on rank 1", &AnotherRateLater},
          {"another_rate_later", "zero2", "0.5 on rank 1", &AnotherRateLater},
          {"another_rate_later", "tp2z0", "0.5 on rank 1", &AnotherRateLater},
          {"fewer_steps", "ddp", "rank 1", &FewerSteps},
          {"fewer_steps", "gemini", "rank 1", &FewerSteps},
          {"raw_criterion_of_uneven_batches", "ddp", "the criterion that boost returned",
           &RawCriterionOfUnevenBatches},
          {"raw_criterion_of_uneven_batches", "zero2", "the criterion that boost returned",
           &RawCriterionOfUnevenBatches},
          {"failing_loss", "ddp", "this loss fails", &FailingLoss},
          {"failing_loss", "tp2z0", "this loss fails", &FailingLoss},
          {"token_outside_the_vocabulary", "ddp", "70", &TokenOutsideTheVocabulary},
          {"save_on_one_rank", "zero2", "a save or an evaluation on rank 0 alone", &SaveOnOneRank},
          {"evaluate_on_one_rank", "gemini", "Every rank must run the same modules",
           &EvaluateOnOneRank},
          {"own_batch_of_shared_layers", "tp2z0", "data_rank()", &OwnBatchOfSharedLayers},
          {"save_unequal_replicas", "local_sgd", "Plugin::BeforeSave", &SaveUnequalReplicas}};
}

}  // namespace outside
