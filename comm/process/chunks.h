// SPDX-License-Identifier: Apache-2.0

// Exchange: the common part of all exchanges of large data. Data moves from member to member in
// chunks, a window of chunks at a time, under the tags of two phases. Private to comm/process.
//
//   class Ring : public Exchange { ... };                  // takes the operation and its transfers
//   InOrder* const add = AddSteps(num_chunks, [this](int64_t chunk) { Add(chunk); });
//   ReceiveBytes(peer, 0, to, kChunkBytes, [add, chunk] { add->Ready(chunk); });
#ifndef APOGEE_COMM_PROCESS_CHUNKS_H_
#define APOGEE_COMM_PROCESS_CHUNKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "apogee/comm/process/operation.h"
#include "apogee/tensor/tensor.h"

namespace apogee::comm::process {

inline constexpr int64_t kChunkBytes = 1 << 20;
// How many chunks of its share a member receives ahead of the chunk that it reduces.
inline constexpr int64_t kWindow = 4;

inline char* BytesAt(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset;
}

// Runs steps 0, 1, 2, ... in this order, each once it is ready. Transfers may complete in any
// order, but those of one peer and tag must be posted in the order in which the peer posts them.
class InOrder {
 public:
  InOrder(int64_t count, std::function<void(int64_t)> run)
      : ready_(static_cast<size_t>(count)), run_(std::move(run)) {}
  void Ready(int64_t step) {
    ready_[static_cast<size_t>(step)] = true;
    while (next_ < ready_.size() && ready_[next_]) run_(static_cast<int64_t>(next_++));
  }

 private:
  std::vector<bool> ready_;
  size_t next_ = 0;
  std::function<void(int64_t)> run_;
};

// One operation's exchange of data. Operation::exchange keeps it alive until its transfers end.
class Exchange {
 protected:
  Exchange(Operation& operation, Transfers& transfers)
      : operation_(operation),
        call_(operation.call),
        transfers_(transfers),
        self_(operation.self),
        size_(operation.members.size()) {}
  ~Exchange() = default;

  // The steps live as long as the exchange.
  InOrder* AddSteps(int64_t count, std::function<void(int64_t)> run) {
    steps_.push_back(std::make_unique<InOrder>(count, std::move(run)));
    return steps_.back().get();
  }
  // `phase` is 0 or 1. Each member has one tag per phase, so a transfer of one phase never matches
  // data that was sent in the other.
  void SendBytes(
      size_t peer, int phase, const void* data, int64_t bytes, std::function<void()> then = [] {}) {
    transfers_.Send(operation_, peer, operation_.members[peer].tag + phase, data, bytes,
                    std::move(then));
  }
  void ReceiveBytes(
      size_t peer, int phase, void* data, int64_t bytes, std::function<void()> then = [] {}) {
    transfers_.Receive(operation_, peer, operation_.members[self_].tag + phase, data, bytes,
                       std::move(then));
  }
  // Calls fn for all of `size` except `self`, starting after `self`, so that not all members send
  // to the first one at once.
  template <typename Fn>
  static void ForOthers(size_t self, size_t size, const Fn& fn) {
    for (size_t step = 1; step < size; ++step) fn((self + step) % size);
  }
  template <typename Fn>
  void ForPeers(const Fn& fn) const {
    ForOthers(self_, size_, fn);
  }

  Operation& operation_;
  const CollectiveCall& call_;
  Transfers& transfers_;
  const size_t self_, size_;  // this member's place, and the number of members

 private:
  std::vector<std::unique_ptr<InOrder>> steps_;
};

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_CHUNKS_H_
