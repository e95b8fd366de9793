// SPDX-License-Identifier: Apache-2.0

// The commands of gpu_bench; see gpu_bench.cc.
#ifndef APOGEE_BENCH_GPU_COMMANDS_H_
#define APOGEE_BENCH_GPU_COMMANDS_H_

#include <string>

#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/bench/gpu/measure.h"
#include "apogee/core/device_context.h"

namespace apogee::bench {

struct Flags {
  std::string device = "cuda";
  MeasureOptions measure;
  bool quick = false;
  int64_t params = 500'000'000;
  int64_t batch = 16, block = 1024, steps = 20;
  std::string size = "124m";
  std::string precision = "bf16";
  bool graphed = false;
  bool list = false;
  std::string only;  // a part of the names

  // For --quick.
  void MakeQuick();
  KernelSizes sizes() const;
};

// Whether the driver, a kernel and a product work, with right results; throws Error if not.
void Smoke(const ContextPtr& context);
// Every row of kernel_rows.h and every kernel of the optimizers.
void Kernels(const Flags& flags, const ContextPtr& context);
// The kernels of each row of optimizer_rows.h.
void OptimizerKernels(const Flags& flags, const ContextPtr& context);
// The same rows with their formulas, without measuring; needs no device.
void ListKernels(const Flags& flags);
// Whole steps of the optimizers.
void Steps(const Flags& flags, const ContextPtr& context);
// Training a GPT-2.
void Gpt(const Flags& flags, const ContextPtr& context);

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_GPU_COMMANDS_H_
