// SPDX-License-Identifier: Apache-2.0

// Times of optimizers: whole steps (gpu_bench steps), and their kernels (gpu_bench kernels).
#include "apogee/bench/gpu/commands.h"
#include "apogee/bench/gpu/kernel_times.h"
#include "apogee/bench/gpu/optimizer_rows.h"

namespace apogee::bench {

void OptimizerKernels(const Flags& flags, const ContextPtr& context) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto params = MakeParameters(flags.params, dtype, context);
    const auto n = static_cast<double>(Numel(params));
    const std::function<void()> copy = CopyOf(8 * n, context);
    for (const OptimizerRow& row : OptimizerRows()) {
      if (row.max_norm > 0 || row.label.find(flags.only) == std::string::npos) continue;
      const auto optimizer = MakeOptimizer(row, params);
      // The warm-up also makes the states.
      const double copy_seconds =
          Interleaved(context, {[&] { optimizer->step(); }, copy}, flags.measure)[1];
      KernelTimes times(context);
      for (int64_t i = 0; i < flags.measure.repeats; ++i) times.Run([&] { optimizer->step(); });
      for (const auto& [name, seconds] : times.Medians()) {
        double bytes = 0;
        for (const OptimizerKernel& kernel : row.kernels) {
          if (name == kernel.name) bytes += kernel.bytes(dtype) * n;
        }
        JsonLine line("optimizer_kernel");
        line.Text("optimizer", row.label).Text("name", name).Text("dtype", DTypeName(dtype));
        line.Integer("params", static_cast<int64_t>(n)).Number("us", seconds * 1e6);
        if (bytes > 0) {
          line.Number("bytes", bytes).Number("gb_per_s", bytes / seconds / 1e9);
          line.Number("share", bytes / seconds * copy_seconds / (8 * n));
        }
      }
    }
  }
}

void Steps(const Flags& flags, const ContextPtr& context) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto params = MakeParameters(flags.params, dtype, context);
    const auto n = static_cast<double>(Numel(params));
    const double copied = 2 * n * static_cast<double>(DTypeSize(dtype));
    const std::function<void()> copy = CopyOf(copied, context);
    for (const OptimizerRow& row : OptimizerRows()) {
      const auto optimizer = MakeOptimizer(row, params);
      const std::vector<double> seconds =
          Interleaved(context, {[&] { optimizer->step(); }, copy}, flags.measure);
      const double rate = row.bytes(dtype) * n / seconds[0], copy_rate = copied / seconds[1];
      JsonLine("step")
          .Text("optimizer", row.label)
          .Text("dtype", DTypeName(dtype))
          .Integer("params", static_cast<int64_t>(n))
          .Number("ms", seconds[0] * 1e3)
          .Number("gb_per_s", rate / 1e9)
          .Number("copy_gb_per_s", copy_rate / 1e9)
          .Number("share", rate / copy_rate);
    }
  }
}

}  // namespace apogee::bench
