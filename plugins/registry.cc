// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/registry.h"

#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/moe_hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"

namespace apogee {
namespace {

absl::StatusOr<std::unique_ptr<Plugin>> MakeSingle(const comm::World& world,
                                                   const TrainingOptions& training,
                                                   const optim::OptionMap& texts) {
  if (!texts.empty()) {
    return InvalidArgument("plugin single: it has no options, got \"", texts.begin()->first, "\"");
  }
  if (world.size() > 1) {
    return InvalidArgument("plugin single: it trains on one rank, but the world has ", world.size(),
                           ", which would all train alone; use ddp");
  }
  return ErrorToStatus([&] { return std::make_unique<SingleRankPlugin>(training); });
}

}  // namespace

PluginRegistry::PluginRegistry(const std::optional<nn::parallel::ParallelPlan>& plan) {
  Add("single", &MakeSingle, {});
  Add<DdpPlugin, DdpOptions>("ddp");
  Add<LowLevelZeroPlugin, LowLevelZeroOptions>("zero1", {.stage = 1});
  Add<LowLevelZeroPlugin, LowLevelZeroOptions>("zero2", {.stage = 2});
  Add<GeminiPlugin, GeminiOptions>("gemini");
  Add<HybridParallelPlugin, HybridParallelOptions>("hybrid", {.plan = plan});
  Add<MoeHybridParallelPlugin, HybridParallelOptions>("moe_hybrid", {.plan = plan});
}

void PluginRegistry::Add(const std::string& name, Factory make, optim::OptionMap defaults) {
  entries_.Add(name, {std::move(make), std::move(defaults)});
}

absl::StatusOr<std::unique_ptr<Plugin>> PluginRegistry::Make(
    const std::string& name, const comm::World& world, const TrainingOptions& training,
    const optim::OptionMap& options) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, entries_.Find(name));
  return entry->make(world, training, options);
}

absl::StatusOr<optim::OptionMap> PluginRegistry::Defaults(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, entries_.Find(name));
  return entry->defaults;
}

}  // namespace apogee
