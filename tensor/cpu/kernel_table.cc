// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/kernel_table.h"

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cpu/kernels.h"

namespace apogee {
namespace {

constexpr KernelTable MakeCpuKernelTable() {
  KernelTable table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cpu::name;
  APOGEE_FOR_EACH_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr KernelTable kCpuKernelTable = MakeCpuKernelTable();

}  // namespace

const KernelTable& CpuKernelTable() { return kCpuKernelTable; }

ContextPtr CpuContext(const CpuOptions& options) {
  OkOrThrow(CheckNumThreads(options.num_threads));
  return std::make_shared<DeviceContext>(
      Device{DeviceType::kCpu, 0}, std::make_unique<CpuAllocator>(options.dry), kCpuKernelTable,
      options.num_threads, nullptr, options.dry);
}

}  // namespace apogee
