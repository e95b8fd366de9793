// SPDX-License-Identifier: Apache-2.0

// DeviceContext: one rank's handle on one device. It holds the rank's allocator with its ledger,
// its CPU thread count or GPU stream, and its table of kernels.
//
// Every tensor carries the context it was made in, and an op's result is made in its inputs'
// context. So several ranks can live in one process without globals: each rank has a context of its
// own, and memory that a communication thread allocates for a tensor of rank 2 counts on rank 2.
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

struct KernelTable;    // tensor/kernel_table.h
class GraphRecorder;   // tensor/graph_recorder.h
class KernelListener;  // core/kernel_listener.h
class DeviceContext;
using ContextPtr = std::shared_ptr<DeviceContext>;

class DeviceContext {
 public:
  // `kernels` must outlive the context (the backends' tables are constants). `host`: the same
  // rank's context of CPU memory; null if this context is on the CPU. `dry`: see is_dry().
  DeviceContext(Device device, std::unique_ptr<Allocator> allocator, const KernelTable& kernels,
                int num_threads, ContextPtr host = nullptr, bool dry = false);
  virtual ~DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  // Copies in the order of the work given to the device. On return `host` may be read or changed.
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) const;
  virtual void CopyFromHost(void* device, const void* host, int64_t bytes) const;
  // Copies between two ranges of the device that do not overlap. Queued like a kernel.
  virtual void CopyWithin(void* to, const void* from, int64_t bytes) const;
  // Blocks until all work given to the device is done. Throws Error if some of it failed. GPU
  // kernels run while the caller goes on; CPU kernels are done when their call returns.
  virtual void Synchronize() const {}

  Device device() const { return device_; }
  // Whether CPU code may read and write this context's memory.
  bool is_host() const { return device_.type == DeviceType::kCpu; }
  Allocator& allocator() const { return *allocator_; }
  MemoryLedger& ledger() const { return allocator_->ledger(); }
  const KernelTable& kernels() const { return kernels_; }
  // Threads that this rank's CPU loops use.
  int num_threads() const { return num_threads_; }
  // A dry context prices a run: shapes, allocations and the ledger are those of a run, but the
  // loops of kernels do not run, and large blocks take no memory. Values computed by kernels are
  // arbitrary. Values written by the host stay right in tensors of at most kDryNumel elements, so
  // that ranks can still agree on options, shapes and presence.
  bool is_dry() const { return dry_; }
  static constexpr int64_t kDryNumel = 16 << 10;

  // Not null while work is captured into a graph instead of being run: ops then report to the
  // recorder, and values cannot be read. Backends set it.
  GraphRecorder* recorder() const { return recorder_; }
  void set_recorder(GraphRecorder* recorder) { recorder_ = recorder; }

  // Not null while somebody listens to the calls of kernels.
  KernelListener* kernel_listener() const { return kernel_listener_; }
  void set_kernel_listener(KernelListener* listener) { kernel_listener_ = listener; }

 private:
  friend const ContextPtr& HostOf(const ContextPtr& context);

  Device device_;
  std::unique_ptr<Allocator> allocator_;
  const KernelTable& kernels_;
  int num_threads_;
  ContextPtr host_;
  bool dry_;
  std::atomic<GraphRecorder*> recorder_ = nullptr;
  std::atomic<KernelListener*> kernel_listener_ = nullptr;
};

// The CPU-memory context of the same rank: `context` itself on the CPU. Null for null.
inline const ContextPtr& HostOf(const ContextPtr& context) {
  return context == nullptr || context->host_ == nullptr ? context : context->host_;
}

// Scratch memory of a kernel: counted as workspace, freed at the end of the scope.
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
