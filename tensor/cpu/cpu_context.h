// SPDX-License-Identifier: Apache-2.0

// Makes a rank's context on the CPU.
//
//   ContextPtr context = CpuContext({.num_threads = 2});
#ifndef APOGEE_TENSOR_CPU_CPU_CONTEXT_H_
#define APOGEE_TENSOR_CPU_CPU_CONTEXT_H_

#include "apogee/core/device_context.h"

namespace apogee {

struct CpuOptions {
  // Threads of this rank's loops and products. Ranks in one process share the cores: give each rank
  // cores / ranks.
  int num_threads = 1;
};

// With an allocator and ledger of its own. Throws Error for threads that CheckNumThreads refuses.
ContextPtr CpuContext(const CpuOptions& options = {});

const KernelTable& CpuKernelTable();

}  // namespace apogee

#endif  // APOGEE_TENSOR_CPU_CPU_CONTEXT_H_
