// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/losses.h"

#include <algorithm>
#include <vector>

namespace apogee::nn {

int64_t CountTargets(const Tensor& targets, int64_t ignore_index) {
  const std::vector<int64_t> values = targets.ToVector<int64_t>();
  return static_cast<int64_t>(values.size()) - std::ranges::count(values, ignore_index);
}

}  // namespace apogee::nn
