// SPDX-License-Identifier: Apache-2.0

// Makes a rank's context on the CPU.
//
//   ContextPtr context = CpuContext({.num_threads = 2});
#ifndef APOGEE_TENSOR_CPU_CPU_CONTEXT_H_
#define APOGEE_TENSOR_CPU_CPU_CONTEXT_H_

#include "apogee/core/device_context.h"

namespace apogee {

struct CpuOptions {
  // Threads of this rank's loops and products. Ranks of one machine share its cores: give each rank
  // cores / ranks.
  int num_threads = 1;
  // A context that prices a run (core/device_context.h).
  bool dry = false;
};

// A context with an allocator and a memory ledger of its own. Kernels have run when they return.
// Throws Error for a num_threads that CheckNumThreads refuses.
ContextPtr CpuContext(const CpuOptions& options = {});

// The CPU's kernels, a constant.
const KernelTable& CpuKernelTable();

}  // namespace apogee

#endif  // APOGEE_TENSOR_CPU_CPU_CONTEXT_H_
