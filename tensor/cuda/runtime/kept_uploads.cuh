// SPDX-License-Identifier: Apache-2.0

// KeptUploads: pinned copies of the data that a captured graph uploads from the host, for every
// replay to read. CudaGraphRecorder: what a capture on a GPU notes. Private to the CUDA folders.
//
//   CudaGraphRecorder recorder;
//   context->set_recorder(&recorder);                     // CopyFromHost keeps its copies there
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_

#include <cstdint>
#include <functional>
#include <utility>
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
  // The next call to Keep is the first of another capture: it returns the copy that the first call
  // of the last capture made, if the bytes are the same, and so on. Other copies are kept, too,
  // because queued work may still read them.
  void Rewind() { next_ = 0; }
  // The number of those others. FreeOthers frees them; no queued work may read them any more.
  size_t num_others() const { return others_.size(); }
  void FreeOthers();

 private:
  struct Copy {
    void* block;
    int64_t bytes;
  };
  std::vector<Copy> copies_;   // of the last capture, in order
  std::vector<void*> others_;  // of earlier ones
  size_t next_ = 0;
};

// The recorder type of this backend's contexts.
struct CudaGraphRecorder : GraphRecorder {
  // `once`: the work is launched once, right after the capture (CudaGraphCall).
  explicit CudaGraphRecorder(bool once = false) : launches_once(once) {}
  // Calls fn after the launch of the work being captured, on the launching thread: to record an
  // event that the host waits for. Of a CudaGraphCall only.
  void AfterLaunch(std::function<void()> fn) { after_launch.push_back(std::move(fn)); }

  const bool launches_once;
  KeptUploads uploads;
  std::vector<std::function<void()>> after_launch;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_KEPT_UPLOADS_CUH_
