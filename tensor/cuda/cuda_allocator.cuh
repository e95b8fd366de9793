// SPDX-License-Identifier: Apache-2.0

// A GPU's allocator of one rank: blocks from the driver, cached by size when freed; of the GPU's
// memory, or of the host's that it reaches (PinnedContext). Private to tensor/cuda.
//
// A freed block may be handed out at once although kernels that use it are still queued: every user
// of a rank's memory is queued on that rank's one stream, so the next one comes after them.
#ifndef APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_
#define APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_

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
  // What the driver aligns to at least, and the step of small sizes.
  static constexpr int64_t kAlignment = 256;

  CudaAllocator(int device, cudaStream_t stream, bool cache,
                CudaMemory memory = CudaMemory::kDevice);
  ~CudaAllocator() override;
  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  void ReleaseCache() override;

  // What is handed out until EndGraph is used by every replay of `graph`, and is kept for it, when
  // it has been freed, until ReleaseGraph. So is what is freed in between: replays read it. The
  // stream must have nothing left to do.
  void BeginGraph(const GraphRecorder* graph);
  void EndGraph();
  // There will be no more replays.
  void ReleaseGraph(const GraphRecorder* graph);

 private:
  // At most 1/8 above the request, so that nearby shapes share blocks.
  int64_t RoundUp(int64_t bytes) const;
  void* TakeCached(int64_t rounded);
  // A block that the capture made and freed: its next user comes after the last, in replays too.
  void* TakeFreedInGraph(int64_t rounded);
  // Notes that the graph that is captured, if there is one, uses this block.
  void GiveToGraph(void* block);
  // True for a freed block that graphs use: it is kept for them.
  bool KeepForGraphs(void* block, int64_t rounded);
  void* AskDriver(int64_t rounded);
  void GiveBack(void* block);  // to the driver
  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, MemoryCategory category);

  int device_;
  cudaStream_t stream_;
  bool keep_;
  CudaMemory memory_;
  std::mutex mutex_;
  std::multimap<int64_t, void*> cache_;   // by rounded size
  const GraphRecorder* graph_ = nullptr;  // that is captured
  std::multimap<int64_t, void*> freed_in_graph_;
  std::unordered_set<void*> made_in_graph_;
  // Of every block that replays use, and those of them that are free.
  std::unordered_map<void*, std::vector<const GraphRecorder*>> users_of_;
  std::unordered_map<void*, int64_t> kept_;  // with their rounded sizes
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_
