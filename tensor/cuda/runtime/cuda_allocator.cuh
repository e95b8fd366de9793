// SPDX-License-Identifier: Apache-2.0

// One rank's allocator on a GPU. It takes blocks from the driver, of the GPU's memory or of pinned
// host memory (PinnedContext), and caches freed blocks by size. Private to tensor/cuda.
//
// A freed block may be handed out at once, even if kernels that use it are still queued: all users
// of a rank's memory are queued on that rank's one stream, so the block's next user comes after
// them.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_CUDA_ALLOCATOR_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_CUDA_ALLOCATOR_CUH_

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "apogee/core/memory.h"

namespace apogee {
class GraphRecorder;
}

namespace apogee::cuda {

enum class CudaMemory { kDevice, kPinnedHost };

class CudaAllocator : public Allocator {
 public:
  // The driver's alignment, at least, and the granularity of small sizes.
  static constexpr int64_t kAlignment = 256;

  CudaAllocator(int device, cudaStream_t stream, bool cache,
                CudaMemory memory = CudaMemory::kDevice);
  ~CudaAllocator() override;
  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  // Does nothing while a graph is captured: the driver may wait for the GPU before it takes memory
  // back, and a capture must not wait.
  void ReleaseCache() override;

  // Blocks that are handed out or freed between BeginGraph and EndGraph belong to `graph`: every
  // replay uses them. When they are freed they are kept for the graph until ReleaseGraph. The
  // stream must be idle. BeginGraph gives the cache to the driver, so that the capture, in which
  // that is not possible, can have all of the memory. Call it before the stream captures, and
  // EndGraph after that.
  void BeginGraph(const GraphRecorder* graph);
  void EndGraph();
  // While `hold` is true, nothing is given back to the driver. For a capture whose work is launched
  // once, right after it: the work is then in order with all other work on the stream, so its
  // blocks need not be kept. Call it before the capture, and with false after the launch.
  void HoldFrees(bool hold);
  // The graph will not be replayed any more.
  void ReleaseGraph(const GraphRecorder* graph);

 private:
  // Rounds up by at most 1/8, so that nearby shapes share blocks.
  int64_t RoundUp(int64_t bytes) const;
  void* TakeCached(int64_t rounded);
  // Returns a block that the current capture allocated and freed, or null. Its next user comes
  // after its last one in every replay, too.
  void* TakeFreedInGraph(int64_t rounded);
  // Notes that the graph being captured, if any, uses this block.
  void GiveToGraph(void* block);
  // Keeps a freed block that graphs use. Returns false if no graph uses it.
  bool KeepForGraphs(void* block, int64_t rounded);
  void* AskDriver(int64_t rounded);
  void GiveBack(void* block);  // to the driver
  // Whether a capture is under way, in which memory cannot go back to the driver.
  bool IsCapturing() const { return graph_ != nullptr || holds_frees_; }
  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, MemoryCategory category);

  int device_;
  cudaStream_t stream_;
  bool keep_;
  CudaMemory memory_;
  std::mutex mutex_;
  std::multimap<int64_t, void*> cache_;   // by rounded size
  const GraphRecorder* graph_ = nullptr;  // the graph being captured
  bool holds_frees_ = false;
  std::multimap<int64_t, void*> freed_in_graph_;
  std::unordered_set<void*> made_in_graph_;
  // The graphs whose replays use a block; and those of these blocks that are free.
  std::unordered_map<void*, std::vector<const GraphRecorder*>> users_of_;
  std::unordered_map<void*, int64_t> kept_;  // with their rounded sizes
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_CUDA_ALLOCATOR_CUH_
