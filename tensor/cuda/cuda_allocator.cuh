// A GPU's allocator of one rank: blocks from the driver, cached by size when freed. Private to
// tensor/cuda.
//
// A freed block may be handed out at once although kernels that use it are still queued: every user
// of a rank's memory is queued on that rank's one stream, so the next one comes after them.
#ifndef APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_
#define APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "apogee/core/memory.h"

namespace apogee::cuda {

class CudaAllocator : public Allocator {
 public:
  // What the driver aligns to at least, and the step of small sizes.
  static constexpr int64_t kAlignment = 256;

  CudaAllocator(int device, cudaStream_t stream, bool cache);
  ~CudaAllocator() override;
  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  void ReleaseCache() override;

 private:
  // At most 1/8 above the request, so that nearby shapes share blocks.
  int64_t RoundUp(int64_t bytes) const;
  void* TakeCached(int64_t rounded);
  void* AskDriver(int64_t rounded);
  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, MemoryCategory category);

  int device_;
  cudaStream_t stream_;
  bool keep_;
  std::mutex mutex_;
  std::multimap<int64_t, void*> cache_;  // by rounded size
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_CUDA_ALLOCATOR_CUH_
