// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/ddp.h"

#include <utility>

#include "apogee/plugins/sharding/replicated_engine.h"

namespace apogee {

std::vector<optim::OptionField<DdpOptions>> DdpOptions::Fields() {
  return {{"reproducible", &DdpOptions::reproducible}};
}

DdpPlugin::DdpPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const DdpOptions& options)
    : DdpPlugin(std::move(group), training, options, CutParameters{}) {}

DdpPlugin::DdpPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const DdpOptions& options, const CutParameters& cut)
    : DataParallelPlugin(
          std::make_unique<ReplicatedEngine>(std::move(group), training, options, cut)) {}

}  // namespace apogee
