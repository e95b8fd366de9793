// SPDX-License-Identifier: Apache-2.0

// GpuCall: a collective on tensors of a GPU, from this member's call until the device has come past
// it.
//
//   auto call = std::make_shared<GpuCall>(collective_call, rank, size);  // the rank's thread
//   OperationPtr last = call->Submit(communicator, stream);  // once all members have called it
//   last->WaitQueued();                                      // the rank's thread; CommError
//   call->Join();                                            // its streams wait for the result
//
// What the rank had queued for its tensors before the call comes before the collective, and what it
// queues after Join comes after; its thread waits for the device in neither. The tensors and the
// scratch memory, which is the rank's, are held until they may be used anew: by Join, whose
// streams wait, or when the device has come past the call. Private to comm.
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
  // Of a call with elements. `rank` of `size`: as of MakeSteps.
  GpuCall(CollectiveCall call, int rank, int size);

  // Its operations run in the order of Submits, on the stream of `context`, which is not the rank's
  // and outlives the communicator. Returns the last. Throws Error for sums of integers, CommError
  // when the communicator has failed.
  OperationPtr Submit(Communicator& communicator, const ContextPtr& context);
  // Once the last operation is queued.
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
  std::vector<ContextPtr> contexts_;  // of the tensors
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
