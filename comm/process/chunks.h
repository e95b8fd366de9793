// What the exchanges of data have in common: large data moves in chunks, a window of them at a
// time. Private to comm/process.
#ifndef APOGEE_COMM_PROCESS_CHUNKS_H_
#define APOGEE_COMM_PROCESS_CHUNKS_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::comm::process {

inline constexpr int64_t kChunkBytes = 1 << 20;
// Chunks of its share that a member gathers ahead of the one that it reduces.
inline constexpr int64_t kWindow = 4;

inline char* BytesAt(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset;
}

// Runs steps 0, 1, 2, ... in this order, each once it is ready: transfers may end in any order, but
// what is posted for one peer and tag must be posted in the order in which the peer posts it.
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

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_CHUNKS_H_
