// SPDX-License-Identifier: Apache-2.0

// PlacementOptions: where GeminiPlugin's chunks live, and which values stay gathered.
//
//   GeminiPlugin plugin(world.group(), training,
//                       {.placement = {.placement_policy = PlacementPolicy::kAuto,
//                                      .device_budget_bytes = int64_t{1} << 30}});
//
// plugins/gemini/chunk_homes.h says what the policies do.
#ifndef APOGEE_PLUGINS_GEMINI_PLACEMENT_H_
#define APOGEE_PLUGINS_GEMINI_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/optim/options.h"

namespace apogee {

enum class PlacementPolicy { kStatic, kAuto };

// "static", "auto".
const char* Name(PlacementPolicy policy);
absl::StatusOr<PlacementPolicy> ParsePlacementPolicy(const std::string& text);

struct PlacementOptions {
  PlacementPolicy placement_policy = PlacementPolicy::kStatic;
  // kStatic: the fraction of the parameters that is sharded between uses. The rest stays whole
  // from its first use in a step to the step's end. The next two are the fractions of the optimizer
  // data (masters, states, gradients) and of the parameter shards that live in host memory. All
  // three are rounded to whole chunks.
  double shard_param_frac = 1;
  double offload_optim_frac = 0;
  double offload_param_frac = 0;
  // kStatic: gathered values stay after use, and the next ones are gathered ahead, while all
  // gathered values together take at most this many bytes. 0: values are whole only while they are
  // used.
  int64_t max_gathered_bytes = 0;
  // kAuto: the most bytes of model data on this rank's device.
  int64_t device_budget_bytes = 0;
  // A directory on an NVMe disk. If set, masters and states that are not on the device are in a
  // file there instead of in host memory; the operating system reads and writes its pages. The file
  // has no name and vanishes with the process.
  std::string nvme_dir = {};
  static std::vector<optim::OptionField<PlacementOptions>> Fields();
  friend bool operator==(const PlacementOptions&, const PlacementOptions&) = default;
};

// Appends a line to `errors` for every wrong option.
void CheckPlacement(const PlacementOptions& options, std::string& errors);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_PLACEMENT_H_
