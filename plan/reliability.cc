// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/reliability.h"

#include <algorithm>
#include <cmath>

namespace apogee::plan {

Reliability ReliabilityOf(const ReliabilityOptions& options, int num_ranks, double save_seconds) {
  Reliability result{.mttf_seconds = options.rank_mttf_seconds / num_ranks,
                     .save_seconds = save_seconds};
  result.interval_seconds = std::sqrt(2 * result.mttf_seconds * save_seconds);
  const double saving = save_seconds > 0 ? save_seconds / result.interval_seconds : 0;
  const double repeated =
      (result.interval_seconds / 2 + options.restart_seconds) / result.mttf_seconds;
  result.lost = std::min(1.0, saving + repeated);
  return result;
}

}  // namespace apogee::plan
