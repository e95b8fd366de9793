// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/moe_config.h"

#include <cmath>

#include "apogee/core/error.h"

namespace apogee::nn {

std::string MoeProblems(const MoeConfig& c) {
  std::string problems;
  const auto require = [&](bool ok, const auto&... parts) {
    if (!ok) problems += "\n  " + internal::Concat(parts...);
  };
  require(c.num_experts > 0, "num_experts must be positive, got ", c.num_experts);
  require(c.top_k > 0 && c.top_k <= c.num_experts, "top_k must be in [1, ", c.num_experts,
          "], the number of experts, got ", c.top_k);
  require(c.intermediate_size > 0, "the experts' intermediate_size must be positive, got ",
          c.intermediate_size);
  require(c.shared_size >= 0, "shared_size must not be negative, got ", c.shared_size);
  require(!c.shared_gate || c.shared_size > 0, "shared_gate is set, but there is no shared expert");
  const bool groups = c.num_groups > 0 && c.num_experts % c.num_groups == 0;
  require(groups, "num_groups ", c.num_groups, " must divide the ", c.num_experts, " experts");
  require(c.top_groups > 0 && c.top_groups <= c.num_groups, "top_groups must be in [1, ",
          c.num_groups, "], got ", c.top_groups);
  if (groups) {
    require(c.top_k <= c.top_groups * (c.num_experts / c.num_groups), "top_k ", c.top_k,
            " is more than the ", c.top_groups * (c.num_experts / c.num_groups), " experts of ",
            c.top_groups, " groups");
  }
  const auto is_factor = [](double x) { return std::isfinite(x) && x >= 0; };
  require(is_factor(c.capacity_factor), "capacity_factor must not be negative, got ",
          c.capacity_factor);
  require(is_factor(c.balance_coefficient), "balance_coefficient must not be negative, got ",
          c.balance_coefficient);
  require(is_factor(c.z_coefficient), "z_coefficient must not be negative, got ", c.z_coefficient);
  require(std::isfinite(c.scale) && c.scale > 0, "scale must be above 0, got ", c.scale);
  return problems;
}

}  // namespace apogee::nn
