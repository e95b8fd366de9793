// SPDX-License-Identifier: Apache-2.0

// Loops over blocks of rows for the CPU kernels of layer-wise optimizers, and the sums of their
// results. Private to optim/cpu.
//
// Blocks are cut independently of threads (optim/core/row_blocks.h), and their partial sums are
// added in the order of the blocks, so every bit is the same for any number of threads.
#ifndef APOGEE_OPTIM_CPU_LOOPS_BLOCK_LOOP_H_
#define APOGEE_OPTIM_CPU_LOOPS_BLOCK_LOOP_H_

#include <memory>
#include <vector>

#include "apogee/optim/core/row_blocks.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {

template <typename Chunk>
struct BlockTask {
  const Chunk* chunk;
  const RowBlock* block;
  int64_t first;  // number of elements of all earlier tasks
};

template <typename Chunk>
std::vector<BlockTask<Chunk>> BlockTasks(std::span<const Chunk> chunks) {
  std::vector<BlockTask<Chunk>> tasks;
  int64_t first = 0;
  for (const Chunk& chunk : chunks) {
    for (const RowBlock& block : chunk.blocks) {
      tasks.push_back({&chunk, &block, first});
      first += block.rows * block.cols;
    }
  }
  return tasks;
}

// Calls fn(task index) once for each task. Threads get about the same number of elements.
template <typename Task, typename Fn>
void ForEachTask(const DeviceContext& context, const std::vector<Task>& tasks, const Fn& fn) {
  if (tasks.empty()) return;
  const RowBlock& last = *tasks.back().block;
  const int64_t total = tasks.back().first + last.rows * last.cols;
  ParallelFor(context, total, 1 << 15, [&](int64_t begin, int64_t end) {
    const auto at = std::lower_bound(tasks.begin(), tasks.end(), begin,
                                     [](const Task& task, int64_t x) { return task.first < x; });
    for (auto task = at; task != tasks.end() && task->first < end; ++task) {
      fn(static_cast<size_t>(task - tasks.begin()));
    }
  });
}

// Calls fn(row within the block, local position, gradient) for each row of a block, with the
// gradient converted to C.
template <typename C, typename Chunk, typename Fn>
void ForEachGradRow(const Chunk& chunk, const RowBlock& block, const Fn& fn) {
  alignas(64) C stage[kMaxBlockCols];
  const bool staged = chunk.grad_dtype != DTypeOf<C>();
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t local = block.local + i * chunk.row_stride;
    if (staged) LoadBlock(chunk.grad, chunk.grad_dtype, local, block.cols, stage);
    fn(i, local, staged ? static_cast<const C*>(stage) : static_cast<const C*>(chunk.grad) + local);
  }
}

// The length of n numbers rounded up to whole cache lines, and the first number in `memory` that
// starts a cache line.
inline constexpr int64_t kCacheLine = 64;
template <typename C>
constexpr int64_t AlignedLength(int64_t n) {
  constexpr int64_t kLine = kCacheLine / static_cast<int64_t>(sizeof(C));
  return (n + kLine - 1) / kLine * kLine;
}
template <typename C>
C* AlignedBegin(std::vector<C>& memory) {
  void* begin = memory.data();
  size_t space = memory.size() * sizeof(C);
  return static_cast<C*>(std::align(kCacheLine, sizeof(C), begin, space));
}

// Calls fn(chunk, block, row sums, column sums) for each block. fn adds to the sums of the block's
// rows and columns, which start at 0 (null if the chunk has none), and returns the scalar. The
// totals over the blocks are added to the chunk's `sums`, laid out as [rows][columns] and, with
// `has_scalar`, the scalar.
template <typename C, typename S, typename Chunk, typename Fn>
void AddBlockSums(const DeviceContext& context, std::span<const Chunk> chunks, bool has_vectors,
                  bool has_scalar, const Fn& fn) {
  const std::vector<BlockTask<Chunk>> tasks = BlockTasks(chunks);
  std::vector<int64_t> offsets;
  int64_t length = 0;
  for (const BlockTask<Chunk>& task : tasks) {
    offsets.push_back(length);
    if (has_vectors && task.chunk->rows > 0) {
      length += AlignedLength<C>(task.block->cols) + AlignedLength<C>(task.block->rows);
    }
  }
  // Sums are added a vector at a time, which is slow across the border of two cache lines.
  std::vector<C> memory(static_cast<size_t>(length + AlignedLength<C>(1)));
  C* const partials = AlignedBegin(memory);
  std::vector<double> scalars(tasks.size());
  ForEachTask(context, tasks, [&](size_t t) {
    const BlockTask<Chunk>& task = tasks[t];
    C* columns = has_vectors && task.chunk->rows > 0 ? partials + offsets[t] : nullptr;
    C* rows = columns != nullptr ? columns + AlignedLength<C>(task.block->cols) : nullptr;
    scalars[t] = fn(*task.chunk, *task.block, rows, columns);
  });
  for (size_t t = 0; t < tasks.size();) {
    const Chunk& chunk = *tasks[t].chunk;
    const bool vectors = has_vectors && chunk.rows > 0;
    S* sums = static_cast<S*>(chunk.sums);
    double scalar = 0;
    for (; t < tasks.size() && tasks[t].chunk == &chunk; ++t) {
      const RowBlock& block = *tasks[t].block;
      scalar += scalars[t];
      if (!vectors) continue;
      const C* partial = partials + offsets[t];
      S* column = sums + chunk.rows + block.column;
      for (int64_t j = 0; j < block.cols; ++j) column[j] += static_cast<S>(partial[j]);
      partial += AlignedLength<C>(block.cols);
      S* row = sums + block.row;
      for (int64_t i = 0; i < block.rows; ++i) row[i] += static_cast<S>(partial[i]);
    }
    if (has_scalar) sums[vectors ? chunk.rows + chunk.columns : 0] += static_cast<S>(scalar);
  }
}

// Updates all rows of all blocks: calls fn(prepare(chunk), chunk, block, row within the block,
// local position, weights, gradient) and rounds the working weights after each row. prepare runs
// once per block.
template <typename C, typename Chunk, typename Prepare, typename Fn>
void UpdateBlocks(const DeviceContext& context, std::span<const Chunk> chunks,
                  const Prepare& prepare, const Fn& fn) {
  const std::vector<BlockTask<Chunk>> tasks = BlockTasks(chunks);
  ForEachTask(context, tasks, [&](size_t t) {
    const Chunk& chunk = *tasks[t].chunk;
    const RowBlock& block = *tasks[t].block;
    const auto prepared = prepare(chunk);
    ForEachGradRow<C>(chunk, block, [&](int64_t i, int64_t local, const C* grad) {
      C* weight = static_cast<C*>(chunk.weight) + local;
      fn(prepared, chunk, block, i, local, weight, grad);
      if (chunk.working != nullptr) {
        StoreBlock(weight, chunk.working, chunk.working_dtype, local, block.cols);
      }
    });
  });
}

// Calls run.template operator()<C, S>() with C for the compute dtype and S for that of the
// statistics.
template <typename Run>
void DispatchStats(DType dtype, DType stat_dtype, const Run& run) {
  if (dtype == DType::kF64) return run.template operator()<double, double>();
  if (stat_dtype == DType::kF64) return run.template operator()<float, double>();
  run.template operator()<float, float>();
}

}  // namespace apogee::optim::cpu

#endif  // APOGEE_OPTIM_CPU_LOOPS_BLOCK_LOOP_H_
