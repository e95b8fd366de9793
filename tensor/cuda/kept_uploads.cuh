// SPDX-License-Identifier: Apache-2.0

// What a graph that is captured uploads from the host: pinned copies that every replay reads.
// Private to tensor/cuda.
//
//   CudaGraphRecorder recorder;
//   context->set_recorder(&recorder);                     // CopyFromHost keeps its copies there
#ifndef APOGEE_TENSOR_CUDA_KEPT_UPLOADS_CUH_
#define APOGEE_TENSOR_CUDA_KEPT_UPLOADS_CUH_

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

  // Throws Error where the host's memory cannot be pinned.
  const void* Keep(const void* host, int64_t bytes);

 private:
  std::vector<void*> blocks_;
};

// What contexts of this backend have as recorder.
struct CudaGraphRecorder : GraphRecorder {
  KeptUploads uploads;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_KEPT_UPLOADS_CUH_
