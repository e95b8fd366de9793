// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/machine/machine.h"

#include <algorithm>
#include <bit>

#include "apogee/core/kernel_listener.h"

namespace apogee::plan {

std::string KernelKey(const KernelCall& call) {
  return std::string(call.name) + " " + DTypeName(call.dtype);
}

double Machine::SecondsOf(const KernelCall& call) const {
  const auto found = kernels.find(KernelKey(call));
  const KernelRate& rate = found == kernels.end() ? other : found->second;
  return rate.seconds_per_call + rate.seconds_per_flop * call.flops +
         rate.seconds_per_byte * call.bytes;
}

bool Machine::IsWithin(const std::vector<int>& members) const {
  if (ranks_per_machine == 0) return true;
  return std::ranges::all_of(members, [&](int member) {
    return member / ranks_per_machine == members[0] / ranks_per_machine;
  });
}

double Machine::SecondsOf(comm::CollectiveKind kind, int64_t payload_bytes,
                          const std::vector<int>& members) const {
  using comm::CollectiveKind;
  const auto n = static_cast<double>(members.size());
  const auto bytes = static_cast<double>(payload_bytes);
  if (n < 2) return 0;
  const bool is_within = IsWithin(members);
  if (is_within && shares_cores()) {
    const auto found = collectives.find(comm::CollectiveName(kind));
    if (found == collectives.end()) return 0;
    return found->second.seconds_per_call + found->second.seconds_per_byte * bytes;
  }
  const Link& link = is_within ? within : between;
  if (link.bytes_per_second <= 0) return 0;
  const double transfer = bytes / link.bytes_per_second;
  const double rounds = std::bit_width(members.size() - 1);  // log2, rounded up
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * ((n - 1) / n * transfer + rounds * link.latency_seconds);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return (n - 1) / n * transfer + rounds * link.latency_seconds;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBarrier:
      return transfer + rounds * link.latency_seconds;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return transfer + link.latency_seconds;
  }
  return 0;
}

}  // namespace apogee::plan
