// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/low_level_zero.h"

#include <utility>

#include "apogee/plugins/sharding/resident_engine.h"

namespace apogee {

std::vector<optim::OptionField<LowLevelZeroOptions>> LowLevelZeroOptions::Fields() {
  using Options = LowLevelZeroOptions;
  return {{"stage", &Options::stage},
          {"communication_dtype", optim::EnumField(&Options::communication_dtype, ParsePrecision)},
          {"overlap_gather", &Options::overlap_gather},
          {"master_weights", &Options::master_weights},
          {"offload_states", &Options::offload_states}};
}

LowLevelZeroPlugin::LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                                       const LowLevelZeroOptions& options)
    : LowLevelZeroPlugin(std::move(group), training, options, CutParameters{}) {}

LowLevelZeroPlugin::LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                                       const LowLevelZeroOptions& options, const CutParameters& cut)
    : DataParallelPlugin(
          std::make_unique<ResidentEngine>(std::move(group), training, options, cut)) {}

const chunk::ParameterChunks& LowLevelZeroPlugin::chunks() const {
  return static_cast<const ResidentEngine&>(engine()).parameters();
}
const ContextPtr& LowLevelZeroPlugin::state_context() const {
  return static_cast<const ResidentEngine&>(engine()).state_context();
}

}  // namespace apogee
