// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/placement.h"

#include "apogee/core/text/enum_names.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

constexpr EnumName<PlacementPolicy> kPolicyNames[] = {{PlacementPolicy::kStatic, "static"},
                                                      {PlacementPolicy::kAuto, "auto"}};

void CheckFraction(const char* name, double fraction, std::string& errors) {
  if (fraction >= 0 && fraction <= 1) return;  // false for NaN
  AddProblem(errors, name, " must be between 0 and 1, got ", fraction);
}

}  // namespace

const char* Name(PlacementPolicy policy) { return NameOf<PlacementPolicy>(kPolicyNames, policy); }

absl::StatusOr<PlacementPolicy> ParsePlacementPolicy(const std::string& text) {
  return ParseName<PlacementPolicy>("placement_policy", kPolicyNames, text);
}

std::vector<optim::OptionField<PlacementOptions>> PlacementOptions::Fields() {
  using Options = PlacementOptions;
  return {{"placement_policy", optim::EnumField(&Options::placement_policy, ParsePlacementPolicy)},
          {"shard_param_frac", &Options::shard_param_frac},
          {"offload_optim_frac", &Options::offload_optim_frac},
          {"offload_param_frac", &Options::offload_param_frac},
          {"max_gathered_bytes", &Options::max_gathered_bytes},
          {"device_budget_bytes", &Options::device_budget_bytes},
          {"nvme_dir", &Options::nvme_dir}};
}

void CheckPlacement(const PlacementOptions& options, std::string& errors) {
  CheckFraction("shard_param_frac", options.shard_param_frac, errors);
  CheckFraction("offload_optim_frac", options.offload_optim_frac, errors);
  CheckFraction("offload_param_frac", options.offload_param_frac, errors);
  if (options.offload_param_frac > options.shard_param_frac) {
    AddProblem(errors, "offload_param_frac (", options.offload_param_frac,
               ") must not exceed shard_param_frac (", options.shard_param_frac,
               "): parameters that stay gathered are on the device");
  }
  if (options.max_gathered_bytes < 0) {
    AddProblem(errors, "max_gathered_bytes must not be negative, got ", options.max_gathered_bytes);
  }
  if (options.placement_policy == PlacementPolicy::kStatic) {
    if (options.device_budget_bytes != 0) {
      AddProblem(errors,
                 "device_budget_bytes needs placement_policy \"auto\"; \"static\" uses its "
                 "fractions");
    }
    if (!options.nvme_dir.empty() && options.offload_optim_frac == 0) {
      AddProblem(errors,
                 "nvme_dir needs offload_optim_frac above 0: it stores the optimizer's data that "
                 "does not stay on the device");
    }
    return;
  }
  if (options.device_budget_bytes < 1) {
    AddProblem(errors, "device_budget_bytes must be positive with placement_policy \"auto\", got ",
               options.device_budget_bytes);
  }
  if (options != PlacementOptions{.placement_policy = PlacementPolicy::kAuto,
                                  .device_budget_bytes = options.device_budget_bytes,
                                  .nvme_dir = options.nvme_dir}) {
    AddProblem(errors,
               "shard_param_frac, offload_optim_frac, offload_param_frac and max_gathered_bytes "
               "need placement_policy \"static\"; \"auto\" decides by device_budget_bytes");
  }
}

}  // namespace apogee
