// SPDX-License-Identifier: Apache-2.0

// KeptUploads: pinned copies of the data that a captured graph uploads from the host, for every
// replay to read. Private to tensor/cuda.
//
//   CudaGraphRecorder recorder;
//   context->set_recorder(&recorder);                     // CopyFromHost keeps its copies there
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_

#include <cstdint>
#include <vector>

#include "apogee/tensor/graph_recorder.h"

namespace apogee::cuda {

class KeptUploads {
 public:
  KeptUploads() = default;
  ~KeptUploads();
  KeptUploads(const KeptUploads&) = delete;
  KeptUploads& operator=(const KeptUploads&) = delete;

  // Copies `bytes` from `host`. The copy lives as long as this object. Throws Error if memory
  // cannot be pinned.
  const void* Keep(const void* host, int64_t bytes);

 private:
  std::vector<void*> blocks_;
};

// The recorder type of this backend's contexts.
struct CudaGraphRecorder : GraphRecorder {
  KeptUploads uploads;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_
