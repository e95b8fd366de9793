// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/enqueue.h"

namespace apogee::comm::nccl {
namespace {

DataType ToNccl(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kFloat32;
    case DType::kBF16:
      return kBfloat16;
    case DType::kF16:
      return kFloat16;
    case DType::kF64:
      return kFloat64;
    case DType::kI64:
      return kInt64;
    case DType::kI32:
      return kInt32;
    case DType::kU8:
    case DType::kF8E4M3:  // they are only moved
    case DType::kF8E5M2:
      return kUint8;
    case DType::kI8:
      return kInt8;
  }
  Throw("nccl: there is no dtype ", static_cast<int>(dtype));
}

bool HasFailed(Result result) { return result != kSuccess && result != kInProgress; }

// A group must be ended in any case, and its first error is the one to report.
Result Exchange(const NcclApi& api, const Call& call, Comm comm) {
  const DataType dtype = ToNccl(call.dtype);
  Result result = api.functions().group_start();
  if (HasFailed(result)) return result;
  for (const Piece& piece : call.sends) {
    if (HasFailed(result)) break;
    result = api.functions().send(piece.data, static_cast<size_t>(piece.count), dtype, piece.peer,
                                  comm, call.stream);
  }
  for (const Piece& piece : call.receives) {
    if (HasFailed(result)) break;
    result = api.functions().recv(piece.data, static_cast<size_t>(piece.count), dtype, piece.peer,
                                  comm, call.stream);
  }
  const Result ended = api.functions().group_end();
  return HasFailed(result) ? result : ended;
}

// NCCL has a function for it from 2.28 on.
Result AllToAll(const NcclApi& api, const Call& call, int size, Comm comm) {
  const int64_t count = call.count / size, bytes = count * DTypeSize(call.dtype);
  Call slices{.dtype = call.dtype, .stream = call.stream};
  for (int r = 0; r < size; ++r) {
    char* const from = static_cast<char*>(const_cast<void*>(call.input)) + r * bytes;
    slices.sends.push_back({.peer = r, .data = from, .count = count});
    slices.receives.push_back(
        {.peer = r, .data = static_cast<char*>(call.output) + r * bytes, .count = count});
  }
  return Exchange(api, slices, comm);
}

}  // namespace

const char* FunctionName(const Call& call) {
  if (IsExchange(call)) return "a group of ncclSend and ncclRecv";
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return "ncclAllReduce";
    case CollectiveKind::kReduceScatter:
      return "ncclReduceScatter";
    case CollectiveKind::kAllGather:
      return "ncclAllGather";
    case CollectiveKind::kBroadcast:
      return "ncclBroadcast";
    case CollectiveKind::kReduce:
      return "ncclReduce";
    case CollectiveKind::kAllToAll:
      return "a group of ncclSend and ncclRecv";
    case CollectiveKind::kSend:
      return "ncclSend";
    case CollectiveKind::kRecv:
      return "ncclRecv";
    case CollectiveKind::kBarrier:
      break;
  }
  Throw("nccl: there is no function for ", CollectiveName(call.kind));
}

Result Enqueue(const NcclApi& api, const Call& call, int size, Comm comm) {
  if (IsExchange(call)) return Exchange(api, call, comm);
  const DataType dtype = ToNccl(call.dtype);
  const RedOp op = call.op == ReduceOp::kSum ? kRedSum : kRedMax;
  const auto count = static_cast<size_t>(call.count);
  const auto shard = static_cast<size_t>(call.count / size);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return api.functions().all_reduce(call.input, call.output, count, dtype, op, comm,
                                        call.stream);
    case CollectiveKind::kReduceScatter:
      return api.functions().reduce_scatter(call.input, call.output, shard, dtype, op, comm,
                                            call.stream);
    case CollectiveKind::kAllGather:
      return api.functions().all_gather(call.input, call.output, count, dtype, comm, call.stream);
    case CollectiveKind::kBroadcast:
      return api.functions().broadcast(call.output, call.output, count, dtype, call.root, comm,
                                       call.stream);
    case CollectiveKind::kReduce:
      return api.functions().reduce(call.input, call.output, count, dtype, op, call.root, comm,
                                    call.stream);
    case CollectiveKind::kAllToAll:
      return AllToAll(api, call, size, comm);
    case CollectiveKind::kSend:
      return api.functions().send(call.input, count, dtype, call.root, comm, call.stream);
    case CollectiveKind::kRecv:
      return api.functions().recv(call.output, count, dtype, call.root, comm, call.stream);
    case CollectiveKind::kBarrier:
      break;
  }
  return kInvalidUsage;
}

}  // namespace apogee::comm::nccl
