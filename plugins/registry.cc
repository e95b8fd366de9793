// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/registry.h"

#include "apogee/core/text/text.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
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
  try {
    return std::make_unique<SingleRankPlugin>(training);
  } catch (const Error& error) {
    return InvalidArgument(error.what());
  }
}

}  // namespace

PluginRegistry::PluginRegistry() {
  Add("single", &MakeSingle, {});
  Add<DdpPlugin, DdpOptions>("ddp");
  Add<LowLevelZeroPlugin, LowLevelZeroOptions>("zero1", {.stage = 1});
  Add<LowLevelZeroPlugin, LowLevelZeroOptions>("zero2", {.stage = 2});
  Add<GeminiPlugin, GeminiOptions>("gemini");
  Add<HybridParallelPlugin, HybridParallelOptions>("hybrid");
}

void PluginRegistry::Add(const std::string& name, Factory make, optim::OptionMap defaults) {
  APOGEE_CHECK(!name.empty(), "plugin registry: a name must not be empty");
  const bool added = entries_.try_emplace(name, std::move(make), std::move(defaults)).second;
  APOGEE_CHECK(added, "plugin registry: the name \"", name, "\" is taken; choose another one");
}

std::vector<std::string> PluginRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

absl::StatusOr<const PluginRegistry::Entry*> PluginRegistry::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return NotFound(UnknownName("plugin", name, names()));
  return &found->second;
}

absl::StatusOr<std::unique_ptr<Plugin>> PluginRegistry::Make(
    const std::string& name, const comm::World& world, const TrainingOptions& training,
    const optim::OptionMap& options) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->make(world, training, options);
}

absl::StatusOr<optim::OptionMap> PluginRegistry::Defaults(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->defaults;
}

}  // namespace apogee
