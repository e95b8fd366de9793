// SPDX-License-Identifier: Apache-2.0

// One rank's handle on one device: its allocator and ledger, its thread count or stream, its
// kernels.
//
// Every tensor carries the context it was made in, and an op's result is made in its inputs'
// context. That is how several ranks live in one process without globals: each has a context of its
// own, and the memory that a communication thread allocates for a tensor of rank 2 is counted on
// rank 2.
//
//   ContextPtr context = CpuContext({.num_threads = 2});          // tensor/cpu/cpu_context.h
//   Tensor x = Tensor::Zeros({4, 8}, DType::kF32, context);
#ifndef APOGEE_CORE_DEVICE_CONTEXT_H_
#define APOGEE_CORE_DEVICE_CONTEXT_H_

#include <atomic>
#include <memory>

#include "apogee/core/device.h"
#include "apogee/core/memory.h"

namespace apogee {

struct KernelTable;   // tensor/kernel_table.h
class GraphRecorder;  // tensor/graph_recorder.h
class DeviceContext;
using ContextPtr = std::shared_ptr<DeviceContext>;

class DeviceContext {
 public:
  // `kernels` must outlive the context (the backends' tables are constants). `host`: where this
  // rank keeps what the processor reads; null where that is the context itself.
  DeviceContext(Device device, std::unique_ptr<Allocator> allocator, const KernelTable& kernels,
                int num_threads, ContextPtr host = nullptr);
  virtual ~DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  // Copies in the order of what is asked of the device. On return `host` may be read or changed.
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) const;
  virtual void CopyFromHost(void* device, const void* host, int64_t bytes) const;
  // Between two ranges of the device that do not overlap, queued like a kernel.
  virtual void CopyWithin(void* to, const void* from, int64_t bytes) const;
  // Waits for all that was asked of the device; throws Error when some of it failed. Kernels of a
  // GPU run while the caller goes on; those of the CPU have run when they return.
  virtual void Synchronize() const {}

  Device device() const { return device_; }
  // The processor may read and write this context's memory.
  bool is_host() const { return device_.type == DeviceType::kCpu; }
  Allocator& allocator() const { return *allocator_; }
  MemoryLedger& ledger() const { return allocator_->ledger(); }
  const KernelTable& kernels() const { return kernels_; }
  // Threads that this rank's CPU loops use.
  int num_threads() const { return num_threads_; }

  // Not null while what is asked of the device is captured into a graph instead of done: what ops
  // tell it, and values are not there to be read. For backends to set.
  GraphRecorder* recorder() const { return recorder_; }
  void set_recorder(GraphRecorder* recorder) { recorder_ = recorder; }

 private:
  friend const ContextPtr& HostOf(const ContextPtr& context);

  Device device_;
  std::unique_ptr<Allocator> allocator_;
  const KernelTable& kernels_;
  int num_threads_;
  ContextPtr host_;
  std::atomic<GraphRecorder*> recorder_ = nullptr;
};

// The context of the same rank whose memory the processor may touch: `context` itself on the CPU.
// Null for null.
inline const ContextPtr& HostOf(const ContextPtr& context) {
  return context == nullptr || context->host_ == nullptr ? context : context->host_;
}

// Scratch memory of a kernel, counted as workspace, freed at scope end.
class Workspace {
 public:
  Workspace(const DeviceContext& context, int64_t bytes)
      : context_(context),
        bytes_(bytes),
        block_(context.allocator().Allocate(bytes, MemoryCategory::kWorkspace)) {}
  ~Workspace() { context_.allocator().Free(block_, bytes_, MemoryCategory::kWorkspace); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  template <typename T>
  T* data() const {
    return static_cast<T*>(block_);
  }

 private:
  const DeviceContext& context_;
  int64_t bytes_;
  void* block_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_DEVICE_CONTEXT_H_
