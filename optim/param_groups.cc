// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/optim/optimizer.h"

namespace apogee::optim {

std::vector<std::vector<autograd::ParameterPtr>> SplitByName(
    const std::vector<autograd::ParameterPtr>& params, const std::vector<std::string>& patterns) {
  std::vector<std::vector<autograd::ParameterPtr>> split(patterns.size() + 1);
  for (const autograd::ParameterPtr& parameter : params) {
    const auto first = std::ranges::find_if(patterns, [&](const std::string& pattern) {
      return GlobMatches(pattern, parameter->name());
    });
    split[static_cast<size_t>(first - patterns.begin())].push_back(parameter);
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    APOGEE_CHECK(!split[i].empty(), "parameter groups: no parameter for the pattern \"",
                 patterns[i],
                 "\"; check its spelling (names are as in model.Parameters()), and "
                 "that no earlier pattern takes its parameters");
  }
  return split;
}

std::pair<std::vector<autograd::ParameterPtr>, std::vector<autograd::ParameterPtr>> SplitByRank(
    const std::vector<autograd::ParameterPtr>& params) {
  std::pair<std::vector<autograd::ParameterPtr>, std::vector<autograd::ParameterPtr>> split;
  for (const autograd::ParameterPtr& parameter : params) {
    (parameter->shape().rank() >= 2 ? split.first : split.second).push_back(parameter);
  }
  return split;
}

}  // namespace apogee::optim
