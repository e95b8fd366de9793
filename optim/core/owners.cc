// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/owners.h"

#include <algorithm>
#include <numeric>

namespace apogee::optim {

std::vector<int> BalancedOwners(std::span<const int64_t> loads, int num_ranks) {
  std::vector<size_t> order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return loads[a] > loads[b]; });
  std::vector<int64_t> given(static_cast<size_t>(num_ranks), 0);
  std::vector<int> owners(loads.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(given);
    *least += loads[i];
    owners[i] = static_cast<int>(least - given.begin());
  }
  return owners;
}

void AssignOwners(Optimizer& optimizer, int rank, int num_ranks) {
  const OptimizerTraits traits = optimizer.traits();
  std::vector<int64_t> loads;
  optimizer.ForEachView([&](const ParamView& view, int group) {
    loads.push_back(traits.Of(view, group).owned_numel);
  });
  const std::vector<int> owners = BalancedOwners(loads, num_ranks);
  size_t index = 0;
  optimizer.ForEachView([&](ParamView& view, int) { view.set_owner(owners[index++] == rank); });
  optimizer.states().DropUndeclared();
}

}  // namespace apogee::optim
