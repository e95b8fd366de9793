// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/pinned_copies.cuh"

#include <algorithm>
#include <cstring>

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {
namespace {

constexpr int64_t kAlignment = 256;

std::byte* Pin(int64_t bytes) {
  void* block = nullptr;
  CheckCuda(cudaHostAlloc(&block, static_cast<size_t>(bytes), cudaHostAllocDefault),
            "pin memory of the host for copies");
  return static_cast<std::byte*>(block);
}

cudaEvent_t MakeEvent() {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event for copies");
  return event;
}

// Calls fn(offset, bytes, number) for each piece.
template <typename Fn>
void ForEachPiece(int64_t bytes, const Fn& fn) {
  for (int64_t offset = 0, i = 0; offset < bytes; offset += PinnedCopies::kPieceBytes, ++i) {
    fn(offset, std::min(PinnedCopies::kPieceBytes, bytes - offset), i);
  }
}

}  // namespace

PinnedCopies::~PinnedCopies() {
  for (const Piece& piece : pieces_) cudaEventDestroy(piece.landed);
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
  for (const cudaEvent_t event : arrived_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFreeHost(ring_);
  cudaFreeHost(blocks_);
}

// Returns `bytes` of the ring. If they were given out before, it waits until the GPU has read them.
std::byte* PinnedCopies::Reserve(int64_t bytes) {
  if (ring_ == nullptr) ring_ = Pin(kRingBytes);
  const int64_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t left = kRingBytes - head_ % kRingBytes;
  if (room > left) head_ += left;  // a piece does not wrap around
  while (head_ + room - tail_ > kRingBytes) {
    if (pieces_.empty()) {  // the rest was given out for copies that failed to start
      tail_ = head_;
      break;
    }
    CheckCuda(cudaEventSynchronize(pieces_.front().landed), "copy from the host");
    tail_ = pieces_.front().end;
    spare_.push_back(pieces_.front().landed);
    pieces_.pop_front();
  }
  std::byte* const piece = ring_ + head_ % kRingBytes;
  head_ += room;
  return piece;
}

void PinnedCopies::Upload(void* device, const void* host, int64_t bytes) {
  std::lock_guard lock(upload_mutex_);
  ForEachPiece(bytes, [&](int64_t offset, int64_t count, int64_t) {
    std::byte* const piece = Reserve(count);
    std::memcpy(piece, static_cast<const std::byte*>(host) + offset, static_cast<size_t>(count));
    CheckCuda(cudaMemcpyAsync(static_cast<std::byte*>(device) + offset, piece,
                              static_cast<size_t>(count), cudaMemcpyDefault, stream_),
              "copy from the host");
    if (spare_.empty()) spare_.push_back(MakeEvent());
    CheckCuda(cudaEventRecord(spare_.back(), stream_), "copy from the host");
    pieces_.push_back({head_, spare_.back()});
    spare_.pop_back();
  });
}

void PinnedCopies::Download(void* host, const void* device, int64_t bytes) {
  std::lock_guard lock(download_mutex_);
  if (blocks_ == nullptr) blocks_ = Pin(2 * kPieceBytes);
  for (cudaEvent_t& event : arrived_) {
    if (event == nullptr) event = MakeEvent();
  }
  const auto land = [&](int64_t offset, int64_t count, int64_t i) {
    CheckCuda(cudaEventSynchronize(arrived_[i % 2]), "copy to the host");
    std::memcpy(static_cast<std::byte*>(host) + offset, blocks_ + i % 2 * kPieceBytes,
                static_cast<size_t>(count));
  };
  ForEachPiece(bytes, [&](int64_t offset, int64_t count, int64_t i) {
    CheckCuda(cudaMemcpyAsync(blocks_ + i % 2 * kPieceBytes,
                              static_cast<const std::byte*>(device) + offset,
                              static_cast<size_t>(count), cudaMemcpyDefault, stream_),
              "copy to the host");
    CheckCuda(cudaEventRecord(arrived_[i % 2], stream_), "copy to the host");
    if (i > 0) land(offset - kPieceBytes, kPieceBytes, i - 1);
  });
  const int64_t last = (bytes - 1) / kPieceBytes;
  land(last * kPieceBytes, bytes - last * kPieceBytes, last);
}

}  // namespace apogee::cuda
