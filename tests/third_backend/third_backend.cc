// SPDX-License-Identifier: Apache-2.0

// The functions that the device "third" gives each layer. Its memory is the host's, but the library
// cannot know that. It has kernels of its own for some ops, and others are missing.
#include "apogee/comm/device_backend.h"
#include "apogee/comm/tree_reduce.h"
#include "apogee/optim/core/device_backend.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/device_backend.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee::third {
namespace {

void Fill(const DeviceContext& /*context*/, const FillArgs& args) {
  auto* const to = static_cast<float*>(args.y);
  for (int64_t i = 0; i < args.n; ++i) to[i] = static_cast<float>(args.value);
}

constexpr KernelTable MakeTable() {
  KernelTable table;
  table.fill = &Fill;
  return table;
}

constexpr KernelTable kTable = MakeTable();

ContextPtr Make(int index, int num_threads) {
  return std::make_shared<DeviceContext>(Device{DeviceType::kThird, index},
                                         std::make_unique<CpuAllocator>(), kTable, num_threads,
                                         CpuContext({.num_threads = num_threads}));
}

}  // namespace

int NumDevices() { return 2; }

absl::StatusOr<ContextPtr> MakeDeviceContext(int device_index, int num_threads) {
  if (device_index >= NumDevices()) {
    return InvalidArgument("device third:", device_index, ": there are devices 0 and 1");
  }
  return Make(device_index, num_threads);
}

ContextPtr MakeHostMemory(const ContextPtr& device) {
  return Make(device->device().index, device->num_threads());
}

}  // namespace apogee::third

namespace apogee::optim::third {
namespace {

// The sum of squares in f32: the host decides a step by it.
void GradNorm(const DeviceContext& /*context*/, const NormArgs& args) {
  for (NormChunk& chunk : args.chunks) {
    chunk.result = 0;
    for (int64_t i = 0; i < chunk.n; ++i) {
      const double g = static_cast<const float*>(chunk.grad)[i];
      chunk.result += g * g;
    }
  }
}

// w -= lr * g, in f32.
void Sgd(const DeviceContext& /*context*/, const SgdArgs& args) {
  for (const SgdArgs::Chunk& chunk : args.chunks) {
    for (int64_t i = 0; i < chunk.n; ++i) {
      static_cast<float*>(chunk.weight)[i] -=
          static_cast<float>(chunk.element.lr) * static_cast<const float*>(chunk.grad)[i];
    }
  }
}

constexpr OptimKernels MakeTable() {
  OptimKernels table;
  table.grad_norm = &GradNorm;
  table.sgd = &Sgd;
  return table;
}

constexpr OptimKernels kTable = MakeTable();

}  // namespace

const OptimKernels& OptimKernelTable() { return kTable; }

DecisionMaker DeviceDecisionMaker() { return nullptr; }

}  // namespace apogee::optim::third

namespace apogee::comm::third {

const SignKernels& SignKernelTable() {
  static constexpr SignKernels kEmptyTable;
  return kEmptyTable;
}

void TreeReduceOn(const DeviceContext& /*context*/, const char* op_name, DType dtype, ReduceOp op,
                  std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t count) {
  TreeReduce(op_name, dtype, op, inputs, outputs, count);
}

}  // namespace apogee::comm::third
