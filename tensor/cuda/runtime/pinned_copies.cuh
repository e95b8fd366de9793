// SPDX-License-Identifier: Apache-2.0

// Copies between host memory and a GPU's memory, staged through pinned memory. Private to the CUDA
// folders.
//
//   PinnedCopies copies(stream);
//   copies.Upload(device, host, bytes);     // does not wait if the ring has room
//   copies.Download(host, device, bytes);   // done on return
//
// The driver also copies pageable memory through pinned memory, but makes every upload wait for all
// work queued on the stream. Here, uploads go through a ring of pieces, each with an event.
// Downloads alternate between two blocks, so that one piece is copied out while the next one
// travels. Thread-safe. Each call throws Error if CUDA fails or memory cannot be pinned.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_PINNED_COPIES_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_PINNED_COPIES_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace apogee::cuda {

class PinnedCopies {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  static constexpr int64_t kRingBytes = 8 * kPieceBytes;

  explicit PinnedCopies(cudaStream_t stream) : stream_(stream) {}
  // The stream must be idle.
  ~PinnedCopies();
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;

  void Upload(void* device, const void* host, int64_t bytes);
  void Download(void* host, const void* device, int64_t bytes);

 private:
  struct Piece {
    int64_t end;  // the value of head_ after this piece
    cudaEvent_t landed;
  };
  std::byte* Reserve(int64_t bytes);

  const cudaStream_t stream_;

  std::mutex upload_mutex_;
  std::byte* ring_ = nullptr;
  int64_t head_ = 0, tail_ = 0;  // bytes given out, and taken back, since the start
  std::deque<Piece> pieces_;     // whose copies may not be complete
  std::vector<cudaEvent_t> spare_;

  std::mutex download_mutex_;
  std::byte* blocks_ = nullptr;  // two pieces
  cudaEvent_t arrived_[2] = {};
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_PINNED_COPIES_CUH_
