// SPDX-License-Identifier: Apache-2.0

// GpuCall: a collective on GPU tensors, from this member's call until the device has completed it.
//
//   auto call = std::make_shared<GpuCall>(collective_call, rank, size);  // on the rank's thread
//   OperationPtr last = call->Submit(communicator, stream);  // once all members have called it
//   last->WaitQueued();                                      // on the rank's thread; CommError
//   call->Join();                                            // its streams wait for the result
//
// The collective runs after the work that the rank had queued for its tensors before the call. Work
// queued after Join runs after the collective. In neither case does the rank's thread wait for the
// device. The call holds its tensors and its scratch memory until they may be reused: until Join,
// or until the device has completed the call. Private to comm.
#ifndef APOGEE_COMM_NCCL_GPU_CALL_H_
#define APOGEE_COMM_NCCL_GPU_CALL_H_

#include <memory>
#include <mutex>
#include <vector>

#include "apogee/comm/cuda/stream_order.h"
#include "apogee/comm/nccl/communicator.h"
#include "apogee/comm/nccl/steps.h"

namespace apogee::comm::nccl {

class GpuCall : public std::enable_shared_from_this<GpuCall> {
 public:
  // The call must have elements. `rank` and `size` are those of MakeSteps.
  GpuCall(CollectiveCall call, int rank, int size);

  // Submits the call's operations, which run in this order on the stream of `context`. That context
  // is not the rank's and must outlive the communicator. Returns the last operation. Throws Error
  // for sums of integers, and CommError if the communicator has failed.
  OperationPtr Submit(Communicator& communicator, const ContextPtr& context);
  // Call it once the last operation is queued.
  void Join();

 private:
  void Before(const DeviceContext& context) const;
  void Reduce(const DeviceContext& context, const std::vector<Reduction>& reductions) const;
  void SetDone(std::shared_ptr<const cuda::StreamMark> mark);
  void Complete();
  void DropTensors();

  const CollectiveKind kind_;
  const ReduceOp op_;
  const DType dtype_;
  std::vector<ContextPtr> contexts_;  // the tensors' contexts
  std::vector<std::unique_ptr<const cuda::StreamMark>> ready_;
  Steps steps_;

  std::mutex mutex_;
  CollectiveCall call_;
  Tensor scratch_;
  std::shared_ptr<const cuda::StreamMark> done_;
  std::unique_ptr<TraceSpan> span_;
};

using GpuCallPtr = std::shared_ptr<GpuCall>;

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_GPU_CALL_H_
