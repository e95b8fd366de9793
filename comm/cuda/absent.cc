// SPDX-License-Identifier: Apache-2.0

// Replaces comm/cuda in a build without CUDA.
#include "apogee/comm/cuda/stream_order.h"
#include "apogee/comm/device_backend.h"

namespace apogee::comm::cuda {
namespace {

constexpr SignKernels kEmptyTable;

[[noreturn]] void ThrowNoCuda() { Throw("a collective on a GPU: this build has no CUDA"); }

}  // namespace

const SignKernels& SignKernelTable() { return kEmptyTable; }

void TreeReduceOn(const DeviceContext& context, const char* op_name, DType /*dtype*/,
                  ReduceOp /*op*/, std::span<const void* const> /*inputs*/,
                  std::span<void* const> /*outputs*/, int64_t /*count*/) {
  Throw(op_name, ": a tensor on ", context.device().ToString(), ", but this build has no CUDA");
}

StreamMark::StreamMark(const DeviceContext& /*context*/) { ThrowNoCuda(); }
StreamMark::~StreamMark() = default;
void StreamMark::MakeWait(const DeviceContext& /*context*/) const { ThrowNoCuda(); }
bool StreamMark::IsReached() const { ThrowNoCuda(); }
void* StreamOf(const DeviceContext& /*context*/) { ThrowNoCuda(); }
void UseDeviceOf(const DeviceContext& /*context*/) { ThrowNoCuda(); }
std::string BusIdOf(Device /*device*/) { ThrowNoCuda(); }

}  // namespace apogee::comm::cuda
