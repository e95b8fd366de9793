// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/agreement.h"

#include "apogee/comm/gather_texts.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::checkpoint {

std::vector<std::string> GatherTexts(const std::string& text, const comm::GroupPtr& group) {
  if (group == nullptr) return {text};
  return comm::GatherTexts(text, *group, CpuContext({.num_threads = 1}));
}

absl::Status AgreeOnStatus(const absl::Status& status, const comm::GroupPtr& group) {
  if (group == nullptr) return status;
  // One character holds the code: there are 17 codes.
  std::string mine;
  if (!status.ok()) {
    mine = static_cast<char>('A' + static_cast<int>(status.code()));
    mine += Message(status);
  }
  const std::vector<std::string> all = GatherTexts(mine, group);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(all[rank][0] - 'A'),
        internal::Concat("rank ", group->world_ranks()[rank], ": ", all[rank].substr(1)));
  }
  return absl::OkStatus();
}

}  // namespace apogee::checkpoint
