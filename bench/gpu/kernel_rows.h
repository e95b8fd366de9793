// SPDX-License-Identifier: Apache-2.0

// The kernels that training a GPT-2 or a Llama spends its time in, as rows to measure: how many
// bytes or FLOPs each has to move or compute, and a call of it.
//
//   for (const KernelRow& row : KernelRows(Gpt2Sizes())) {
//     const KernelCalls calls = row.prepare(context);      // allocates operands
//     calls.ours();                                        // queues the kernel once
//   }
//
// Symbols of the formulas: B sequences of T tokens, N = B T, C channels, H heads, F = 4 C, G the
// gated hidden size, V the padded vocabulary, e bytes per element. Bytes count each operand once,
// as if it were read or written once from memory. bench/pytorch_kernels.py has the same names.
#ifndef APOGEE_BENCH_GPU_KERNEL_ROWS_H_
#define APOGEE_BENCH_GPU_KERNEL_ROWS_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::bench {

struct KernelSizes {
  int64_t batch, block, channels, heads, layers, vocab, gated;
  DType dtype = DType::kBF16;

  int64_t tokens() const { return batch * block; }
  int64_t hidden() const { return 4 * channels; }
  double element_bytes() const { return static_cast<double>(DTypeSize(dtype)); }
};
// GPT-2 124M with 16 sequences of 1024 tokens; `gated` is that of a Llama of its width.
inline KernelSizes Gpt2Sizes() {
  return {.batch = 16,
          .block = 1024,
          .channels = 768,
          .heads = 12,
          .layers = 12,
          .vocab = 50304,
          .gated = 2048};
}
// For processors, and the GPU in software.
inline KernelSizes TinySizes() {
  return {
      .batch = 2, .block = 16, .channels = 32, .heads = 2, .layers = 2, .vocab = 64, .gated = 48};
}

struct KernelCalls {
  std::function<void()> ours;
  // cuBLASLt alone for a product on a GPU; else empty.
  std::function<void()> alone;
};

struct KernelRow {
  std::string name;
  std::string slot;     // of tensor/kernel_table.h
  std::string shape;    // of the result, or m x n x k of a product
  std::string formula;  // of `bytes`, or of `flops` if that is not 0
  int64_t calls;        // in a training step of GPT-2; 0: it has none
  double bytes;         // 0: bound by arithmetic
  double flops;         // 0: bound by memory
  std::function<KernelCalls(const ContextPtr&)> prepare;
};

// All rows, products last.
std::vector<KernelRow> KernelRows(const KernelSizes& sizes);

// Its parts.
std::vector<KernelRow> ElementRows(const KernelSizes& sizes);
std::vector<KernelRow> RowRows(const KernelSizes& sizes);
std::vector<KernelRow> AttentionRows(const KernelSizes& sizes);
std::vector<KernelRow> ProductRows(const KernelSizes& sizes);

// Random values of the standard normal distribution. With equal ones, a GPU computes more products
// per second.
Tensor RandomTensor(const Shape& shape, DType dtype, const ContextPtr& context);
// Random indices below `end`.
Tensor RandomIndices(int64_t count, int64_t end, const ContextPtr& context);

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_GPU_KERNEL_ROWS_H_
