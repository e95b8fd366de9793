// SPDX-License-Identifier: Apache-2.0

// Times of optimizers: whole steps (gpu_bench steps), and their kernels (gpu_bench kernels).
#include "apogee/bench/gpu/optimizers.h"

#include "apogee/tensor/cuda/runtime/device_clock.h"
#include "apogee/tensor/tensor.h"

namespace apogee::bench {

void KernelTimes::OnKernel(const KernelCall& call) {
  clock_.Mark();
  names_.push_back(call.name);
}

KernelTimes::KernelTimes(const ContextPtr& context) : context_(context), clock_(context) {}

void KernelTimes::Run(const std::function<void()>& fn) {
  names_.clear();
  context_->set_kernel_listener(this);
  clock_.Mark();
  try {
    fn();
  } catch (...) {
    context_->set_kernel_listener(nullptr);
    throw;
  }
  context_->set_kernel_listener(nullptr);
  const std::vector<double> seconds = clock_.Take();
  std::map<std::string, double> sums;
  for (size_t i = 0; i < names_.size(); ++i) sums[names_[i]] += seconds[i];
  for (const auto& [name, sum] : sums) runs_[name].push_back(sum);
}

std::map<std::string, double> KernelTimes::Medians() const {
  std::map<std::string, double> medians;
  for (const auto& [name, sums] : runs_) medians[name] = Median(sums);
  return medians;
}

std::function<void()> CopyOf(double bytes, const ContextPtr& context) {
  const auto size = static_cast<int64_t>(bytes / 2);
  const Tensor from = Tensor::Zeros({size}, DType::kU8, context);
  const Tensor to = Tensor::Empty({size}, DType::kU8, context);
  return [=] { context->CopyWithin(to.raw(), from.raw(), size); };
}

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
