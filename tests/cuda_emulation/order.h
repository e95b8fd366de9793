// SPDX-License-Identifier: Apache-2.0

// The order of a block's threads: which accesses to memory come before which, by barriers and
// exchanges alone. Private to the emulation.
//
// The threads run one after another, so the order in which they run shows nothing. A thread's
// access comes before another thread's only if
// - both are in one block, and the block has passed a barrier in between; or
// - both are in one warp, and the lanes have exchanged something in between.
// Nothing orders two blocks of a launch.
#ifndef APOGEE_TESTS_CUDA_EMULATION_ORDER_H_
#define APOGEE_TESTS_CUDA_EMULATION_ORDER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuda_emulation {

// Which thread did something, when, and at which instruction.
struct Stamp {
  uint32_t block = 0;
  uint32_t thread : 10 = 0;
  uint32_t barriers : 22 = 0;  // that its block had passed
  uint32_t exchanges = 0;      // that the thread had begun
  uint32_t code = 0;           // 0: there is no stamp

  bool empty() const { return code == 0; }
  bool SameMoment(const Stamp& o) const {
    return block == o.block && thread == o.thread && barriers == o.barriers &&
           exchanges == o.exchanges;
  }
  uint32_t warp() const { return thread / 32; }
  uint32_t lane() const { return thread % 32; }
};

class BlockOrder {
 public:
  void Begin(uint32_t block, size_t threads) {
    block_ = block;
    barriers_ = 0;
    threads_.assign(threads, {});
    warps_.assign((threads + 31) / 32, {});
  }
  Stamp Now(size_t thread) const {
    Stamp now;
    now.block = block_;
    now.thread = static_cast<uint32_t>(thread);
    now.barriers = barriers_;
    now.exchanges = threads_[thread].exchanges;
    return now;
  }
  // Whether `earlier` comes before what `now` does. Both are in this block.
  bool Before(const Stamp& earlier, const Stamp& now) const {
    if (earlier.barriers < now.barriers || earlier.thread == now.thread) return true;
    return earlier.warp() == now.warp() &&
           earlier.exchanges < std::max(warps_[now.warp()].exchanged[earlier.lane()],
                                        threads_[now.thread].seen[earlier.lane()]);
  }

  void PassBarrier() { ++barriers_; }
  // The thread begins an exchange.
  void Arrive(size_t thread) {
    Lane& lane = threads_[thread];
    ++lane.exchanges;
  }
  // All lanes of the warp have begun the same exchange.
  void PassWhole(size_t warp) {
    const size_t first = warp * 32, end = std::min(threads_.size(), first + 32);
    for (size_t i = first; i < end; ++i) warps_[warp].exchanged[i - first] = threads_[i].exchanges;
  }
  // As Arrive, for an exchange of some lanes: gives them what this lane has seen.
  void ArriveInPart(size_t thread) {
    Arrive(thread);
    Lane& lane = threads_[thread];
    lane.given[lane.exchanges % 2] = lane.seen;
    lane.given[lane.exchanges % 2][thread % 32] = lane.exchanges;
  }
  // All lanes of `mask` have begun the exchange: this lane takes what they gave.
  void PassInPart(size_t thread, unsigned mask) {
    Lane& lane = threads_[thread];
    for (size_t l = 0; l < 32; ++l) {
      if ((mask >> l & 1u) == 0) continue;
      const auto& given = threads_[thread / 32 * 32 + l].given[lane.exchanges % 2];
      for (size_t k = 0; k < 32; ++k) lane.seen[k] = std::max(lane.seen[k], given[k]);
    }
  }

 private:
  using Counts = std::array<uint32_t, 32>;  // of each lane: what it did before it began so many
  struct Lane {
    uint32_t exchanges = 0;
    Counts seen = {};      // by exchanges of some lanes
    Counts given[2] = {};  // by its last exchange, and the one before: a lane may be one ahead
  };
  struct Warp {
    Counts exchanged = {};  // by all lanes
  };

  uint32_t block_ = 0, barriers_ = 0;
  std::vector<Lane> threads_;
  std::vector<Warp> warps_;
};

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_ORDER_H_
