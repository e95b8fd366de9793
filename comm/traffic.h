// SPDX-License-Identifier: Apache-2.0

// Traffic ledger: counts the calls and bytes of a rank's collectives, per operation.
//
//   const Traffic before = group.traffic();
//   optimizer.step();
//   EXPECT_EQ((group.traffic() - before).calls(CollectiveKind::kAllReduce), 1);
#ifndef APOGEE_COMM_TRAFFIC_H_
#define APOGEE_COMM_TRAFFIC_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace apogee::comm {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr int kNumCollectiveKinds = 9;
// For example "all_reduce", "reduce_scatter".
const char* CollectiveName(CollectiveKind kind);

// Calls and payload bytes of one rank on one group. The payload of an operation is:
//   all_reduce, broadcast, reduce, send, recv   the tensor
//   reduce_scatter, all_gather                  the full (unscattered) tensor
//   all_to_all                                  the input; of unequal parts, those for other ranks
//   barrier                                     nothing
class Traffic {
 public:
  int64_t calls(CollectiveKind kind) const { return calls_[static_cast<size_t>(kind)]; }
  int64_t bytes(CollectiveKind kind) const { return bytes_[static_cast<size_t>(kind)]; }
  int64_t total_calls() const;
  int64_t total_bytes() const;
  void Add(CollectiveKind kind, int64_t bytes);
  friend Traffic operator+(const Traffic& a, const Traffic& b);
  friend Traffic operator-(const Traffic& a, const Traffic& b);
  friend Traffic operator*(int64_t times, const Traffic& traffic);

 private:
  std::array<int64_t, kNumCollectiveKinds> calls_{};
  std::array<int64_t, kNumCollectiveKinds> bytes_{};
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TRAFFIC_H_
