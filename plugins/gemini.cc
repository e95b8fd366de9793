// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini.h"

#include <algorithm>
#include <utility>

#include "apogee/plugins/sharding/gathered_engine.h"

namespace apogee {
namespace {

const GatheredEngine& EngineOf(const GeminiPlugin& plugin) {
  return static_cast<const GatheredEngine&>(plugin.engine());
}

}  // namespace

std::vector<optim::OptionField<GeminiOptions>> GeminiOptions::Fields() {
  return optim::InnerFields(&GeminiOptions::placement);
}

GeminiPlugin::GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training,
                           const GeminiOptions& options)
    : GeminiPlugin(std::move(group), training, options, CutParameters{}) {}

GeminiPlugin::GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training,
                           const GeminiOptions& options, const CutParameters& cut)
    : DataParallelPlugin(
          std::make_unique<GatheredEngine>(std::move(group), training, options, cut)) {}

const chunk::ShardedParameters& GeminiPlugin::chunks() const {
  return EngineOf(*this).parameters();
}
comm::GroupPtr GeminiPlugin::gather_group() const { return chunks().group(); }
const ChunkHomes& GeminiPlugin::homes() const { return EngineOf(*this).homes(); }
const chunk::ChunkRecord& GeminiPlugin::chunk_record() const { return chunks().record(); }
const ContextPtr& GeminiPlugin::host() const { return homes().host(); }
int64_t GeminiPlugin::peak_other_bytes() const {
  int64_t peak = 0;
  for (const chunk::ChunkEvent& event : chunk_record().last_step()) {
    peak = std::max(peak, event.other_bytes);
  }
  return peak;
}
const TrainingOptions& GeminiPlugin::training_options() const { return engine().training(); }
const GeminiOptions& GeminiPlugin::options() const { return EngineOf(*this).options(); }

}  // namespace apogee
