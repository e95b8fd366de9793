// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/commands.h"
#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/bench/gpu/optimizer_rows.h"

namespace apogee::bench {
namespace {

// The fields that name a row; what is measured follows.
void Describe(JsonLine& line, const KernelRow& row, DType dtype) {
  line.Text("name", row.name).Text("dtype", DTypeName(dtype)).Text("shape", row.shape);
  line.Text("slot", row.slot).Text("formula", row.formula).Integer("calls", row.calls);
  if (row.bytes > 0) line.Number("bytes", row.bytes);
  if (row.flops > 0) line.Number("flops", row.flops);
}

}  // namespace

void Flags::MakeQuick() {
  measure = {.repeats = 1, .warm_seconds = 0, .sample_seconds = 0};
  params = 60'000;
  batch = 2;
  block = 16;
  steps = 2;
  size = "tiny";
}

KernelSizes Flags::sizes() const {
  KernelSizes sizes = quick ? TinySizes() : Gpt2Sizes();
  sizes.batch = batch;
  sizes.block = block;
  return sizes;
}

void ListKernels(const Flags& flags) {
  const KernelSizes sizes = flags.sizes();
  for (const KernelRow& row : KernelRows(sizes)) {
    if (row.name.find(flags.only) == std::string::npos) continue;
    JsonLine line("kernel");
    Describe(line, row, sizes.dtype);
  }
  // Of a GPT-2 with these sizes: tables, layers, and the last norm.
  const int64_t c = sizes.channels;
  const int64_t params =
      (sizes.vocab + sizes.block) * c + sizes.layers * (12 * c * c + 13 * c) + 2 * c;
  for (const OptimizerRow& row : OptimizerRows()) {
    if (row.max_norm > 0 || row.label.find(flags.only) == std::string::npos) continue;
    for (const OptimizerKernel& kernel : row.kernels) {
      JsonLine line("optimizer_kernel");
      line.Text("optimizer", row.label).Text("name", kernel.name);
      line.Text("dtype", DTypeName(sizes.dtype)).Integer("params", params);
      line.Number("bytes", kernel.bytes(sizes.dtype) * static_cast<double>(params));
      line.Number("bytes_per_param", kernel.bytes(sizes.dtype));
    }
  }
}

void Kernels(const Flags& flags, const ContextPtr& context) {
  const KernelSizes sizes = flags.sizes();
  for (const KernelRow& row : KernelRows(sizes)) {
    if (row.name.find(flags.only) == std::string::npos) continue;
    const KernelCalls calls = row.prepare(context);
    // Bound by memory: beside a copy that moves as much, which is as much in the GPU's cache.
    const std::function<void()> copy = row.bytes > 0 ? CopyOf(row.bytes, context) : nullptr;
    const std::vector<double> seconds =
        Interleaved(context, {calls.ours, calls.alone, copy}, flags.measure);
    JsonLine line("kernel");
    Describe(line, row, sizes.dtype);
    line.Number("us", seconds[0] * 1e6);
    if (row.flops > 0) line.Number("tflop_per_s", row.flops / seconds[0] / 1e12);
    if (row.bytes > 0) {
      line.Number("gb_per_s", row.bytes / seconds[0] / 1e9)
          .Number("share", seconds[2] / seconds[0]);
    }
    if (calls.alone) line.Number("alone_us", seconds[1] * 1e6);
  }
  OptimizerKernels(flags, context);
}

}  // namespace apogee::bench
