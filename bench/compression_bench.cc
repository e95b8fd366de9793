// SPDX-License-Identifier: Apache-2.0

// 1-bit messages: how fast signs are packed and unpacked, next to a loop that streams the same
// number of bytes; and how many bytes a training step sends, in 1-bit messages and in gradients.
//
//   compression_bench [--params 33554432] [--threads 1] [--repeats 9] [--ranks 4]
//
// "bytes" is the memory traffic of a kernel per f32 element, and the reference is a loop of the
// same kind:
//
//   kernel   traffic                                      bytes                 reference
//   pack     reads value and error, writes a bit          8.125                 sum of two arrays
//   unpack   reads and writes both, reads a bit           16.125                add to two arrays
//   collect  reads and writes an error, reads the signs   8 + (ranks + 1) / 8   add to one array
//            of `ranks` ranks, writes a sign
//
// Bytes per step are those of the traffic ledger times (ranks - 1) / ranks: the bytes that a rank
// sends.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <vector>

#include "apogee/comm/compressed_all_reduce.h"
#include "apogee/comm/launch.h"
#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

double Seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Independent sums, so that additions are not the bottleneck.
float SumRange(int64_t n, const float* __restrict a, const float* __restrict b) {
  float sums[64] = {};
  for (int64_t i = 0; i + 64 <= n; i += 64) {
    for (int64_t k = 0; k < 64; ++k) sums[k] += a[i + k] + b[i + k];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}
void AddRange(int64_t n, float* __restrict a, float* __restrict b) {
  for (int64_t i = 0; i < n; ++i) {
    a[i] += 1.0f;
    b[i] += 1.0f;
  }
}
void AddRange(int64_t n, float* __restrict a) {
  for (int64_t i = 0; i < n; ++i) a[i] += 1.0f;
}

struct Settings {
  int64_t params = 32 << 20;
  int threads = 1;
  int repeats = 9;
  int ranks = 4;
};

class KernelBench {
 public:
  explicit KernelBench(const Settings& settings)
      : n_(settings.params / 64 * 64),
        repeats_(settings.repeats),
        ranks_(settings.ranks),
        context_(CpuContext({.num_threads = settings.threads})) {
    value_ = Tensor::Full({n_}, DType::kF32, 0.5, context_);
    error_ = Tensor::Full({n_ + 1040}, DType::kF32, 0.25, context_).Slice(0, 1040, n_);
    bits_ = Tensor::Zeros({n_ / 8}, DType::kU8, context_);
  }

  void Run() {
    const comm::SignKernels& kernels = comm::SignKernelsFor(*context_);
    float* a = value_.data<float>();
    float* b = error_.data<float>();
    double squares = 0;
    std::vector<float> sink(64);
    Row(
        "pack", 8.125,
        [&] {
          kernels.pack(*context_, {DType::kF32, DType::kF32, a, n_, b, nullptr, n_, n_,
                                   bits_.data<uint8_t>(), &squares});
        },
        8,
        [&](int64_t begin, int64_t end) {
          sink[static_cast<size_t>(begin * 8 / n_)] = SumRange(end - begin, a + begin, b + begin);
        });
    Row(
        "unpack", 16.125,
        [&] {
          kernels.unpack(*context_, {DType::kF32, DType::kF32, a, n_, b, nullptr, n_, n_,
                                     bits_.data<uint8_t>(), 0.1, 0.2});
        },
        16, [&](int64_t begin, int64_t end) { AddRange(end - begin, a + begin, b + begin); });
    const std::vector<const uint8_t*> sent(static_cast<size_t>(ranks_), bits_.data<uint8_t>());
    const std::vector<double> scales(static_cast<size_t>(ranks_), 0.1);
    const Tensor out = Tensor::Zeros({n_ / 8}, DType::kU8, context_);
    Row(
        "collect", 8 + (ranks_ + 1) / 8.0,
        [&] {
          kernels.collect(*context_, {DType::kF32, sent, scales, b, nullptr, n_, n_,
                                      out.data<uint8_t>(), &squares});
        },
        8, [&](int64_t begin, int64_t end) { AddRange(end - begin, b + begin); });
    Row(
        "keep_error", 8,
        [&] {
          kernels.keep_error(*context_, {DType::kF32, 0.1, b, nullptr, n_, n_});
        },
        8, [&](int64_t begin, int64_t end) { AddRange(end - begin, b + begin); });
  }

 private:
  void Row(const char* name, double bytes, const std::function<void()>& kernel, double stream_bytes,
           const std::function<void(int64_t, int64_t)>& stream) {
    double best = 1e9, best_stream = 1e9;
    for (int k = 0; k < repeats_; ++k) {  // interleaved, so both see the same load
      best_stream = std::min(
          best_stream, Seconds([&] { ParallelFor(context_->num_threads(), n_, 1 << 15, stream); }));
      best = std::min(best, Seconds(kernel));
    }
    const double n = static_cast<double>(n_);
    const double speed = bytes * n / best * 1e-9, yardstick = stream_bytes * n / best_stream * 1e-9;
    std::printf("%-10s %7.3f bytes  %6.2f GB/s  stream %6.2f GB/s  %3.0f %%\n", name, bytes, speed,
                yardstick, 100 * speed / yardstick);
  }

  int64_t n_;
  int repeats_, ranks_;
  ContextPtr context_;
  Tensor value_, error_, bits_;
};

// The bytes that one rank sends for an average of `n` elements.
void PrintBytes(int ranks, int64_t n) {
  int64_t compressed = 0, dense = 0;
  OkOrThrow(comm::launch({.num_ranks = ranks, .threads_per_rank = 1}, [&](comm::World& world) {
    comm::CompressedAllReduce reduce(world.group());
    const Tensor value = Tensor::Full({n}, DType::kF32, 1, world.context());
    const comm::CompressedTensor tensor{
        value, Tensor::Zeros({reduce.PaddedNumel(n)}, DType::kF32, world.context()),
        Tensor::Zeros({reduce.ChunkNumel(n)}, DType::kF32, world.context())};
    const comm::Traffic start = world.group()->traffic();
    reduce.Run({&tensor, 1});
    const comm::Traffic middle = world.group()->traffic();
    world.group()->AllReduce(value);
    if (world.rank() != 0) return;
    compressed = (middle - start).total_bytes() * (ranks - 1) / ranks;
    // A ring sends every byte twice: once to be summed, once as the sum.
    dense = (world.group()->traffic() - middle).total_bytes() * 2 * (ranks - 1) / ranks;
  }));
  std::printf("%2d ranks, %ld elements: %ld bytes per rank, f32 all-reduce %ld, %.2f times less\n",
              ranks, static_cast<long>(n), static_cast<long>(compressed), static_cast<long>(dense),
              static_cast<double>(dense) / static_cast<double>(compressed));
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Speed and size of 1-bit messages");
  app.add_option("--params", settings.params, "Number of f32 elements")
      ->check(CLI::Range(1 << 16, 1 << 30));
  app.add_option("--threads", settings.threads, "CPU threads")->check(CLI::Range(1, 64));
  app.add_option("--repeats", settings.repeats, "Repetitions; the fastest one counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--ranks", settings.ranks, "Ranks whose signs collect reads")
      ->check(CLI::Range(2, 64));
  CLI11_PARSE(app, argc, argv);
  KernelBench(settings).Run();
  for (const int ranks : {2, 4, 8}) PrintBytes(ranks, 1 << 20);
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
