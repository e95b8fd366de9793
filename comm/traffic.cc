// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/traffic.h"

#include <cstddef>

namespace apogee::comm {

const char* CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kRecv:
      return "recv";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "?";
}

int64_t Traffic::total_calls() const {
  int64_t total = 0;
  for (int64_t calls : calls_) total += calls;
  return total;
}

int64_t Traffic::total_bytes() const {
  int64_t total = 0;
  for (int64_t bytes : bytes_) total += bytes;
  return total;
}

void Traffic::Add(CollectiveKind kind, int64_t bytes) {
  ++calls_[static_cast<size_t>(kind)];
  bytes_[static_cast<size_t>(kind)] += bytes;
}

Traffic operator+(const Traffic& a, const Traffic& b) { return a - (-1) * b; }

Traffic operator-(const Traffic& a, const Traffic& b) {
  Traffic difference;
  for (size_t i = 0; i < kNumCollectiveKinds; ++i) {
    difference.calls_[i] = a.calls_[i] - b.calls_[i];
    difference.bytes_[i] = a.bytes_[i] - b.bytes_[i];
  }
  return difference;
}

Traffic operator*(int64_t times, const Traffic& traffic) {
  Traffic product = traffic;
  for (int64_t& calls : product.calls_) calls *= times;
  for (int64_t& bytes : product.bytes_) bytes *= times;
  return product;
}

}  // namespace apogee::comm
