// SPDX-License-Identifier: Apache-2.0

// RankSetup: what a rank has before it makes a mistake: a model, a plugin, batches, a correct loop.
//
//   RankSetup rank(world, "zero2");
//   optim::AdamW optimizer(rank.model->Parameters(), {});
//   Booster booster(rank.plugin->plugin());
//   auto boosted = booster.boost(*rank.model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//   rank.Train(booster, boosted, /*steps=*/2);
#ifndef OUTSIDE_APP_MISUSE_SETUP_H_
#define OUTSIDE_APP_MISUSE_SETUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/apogee.h"
#include "language_model.h"
#include "plugins.h"

namespace outside {

struct RankSetup {
  RankSetup(const apogee::comm::World& world, const std::string& plugin);

  const apogee::ContextPtr& context() const { return world.context(); }
  // Tokens below the vocabulary, others on every data-parallel rank.
  apogee::data::Batch Batch() const;
  apogee::Tensor Loss(const apogee::Boosted& boosted) const;
  void Train(apogee::Booster& booster, const apogee::Boosted& boosted, int steps) const;
  // A folder that no other case uses; the same on every rank.
  std::string Folder() const;

  const apogee::comm::World& world;
  const ModelConfig config = {};
  std::unique_ptr<LanguageModel> model;  // initialised
  std::unique_ptr<NamedPlugin> plugin;
  int data_rank = 0;  // the plugin's
};

}  // namespace outside

#endif  // OUTSIDE_APP_MISUSE_SETUP_H_
