// SPDX-License-Identifier: Apache-2.0

// SpecCache: keeps lists of state declarations that depend on options and shapes, so that
// StatesUnder can return a span.
//
//   return cache_.Keep({{"state1", StateKind::kCodes}, {"absmax1", StateKind::kBlockScale, {20}}});
//
// Equal lists are kept once, so the cache grows with the number of different shapes, not of steps.
#ifndef APOGEE_OPTIM_CORE_SPEC_CACHE_H_
#define APOGEE_OPTIM_CORE_SPEC_CACHE_H_

#include <algorithm>
#include <cstring>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "apogee/optim/param_view.h"

namespace apogee::optim {

class SpecCache {
 public:
  std::span<const StateSpec> Keep(std::vector<StateSpec> specs) {
    for (const std::vector<StateSpec>& kept : lists_) {
      if (std::ranges::equal(kept, specs, Same)) return kept;
    }
    return lists_.emplace_back(std::move(specs));
  }

 private:
  static bool Same(const StateSpec& a, const StateSpec& b) {
    return std::strcmp(a.name, b.name) == 0 && a.kind == b.kind && a.shape == b.shape;
  }

  std::list<std::vector<StateSpec>> lists_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_SPEC_CACHE_H_
