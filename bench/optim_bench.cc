// SPDX-License-Identifier: Apache-2.0

// How close the optimizers' steps come to the speed of memory, on f32 weights in the shapes of a
// GPT. The reference, measured in the same run and interleaved with the steps, is a loop with four
// read and three write streams, like AdamW's, and almost no arithmetic.
//
//   optim_bench [--params 33554432] [--threads 1] [--repeats 9] [--dtype f32] [--only lamb]
//               [--clock wall]
//
// "bytes" is the memory traffic of a step per parameter, statistics included. AdamW reads weights,
// gradients and two moments and writes all but the gradients: 28. LAMB's 40 and CAME's 32 assume
// that moments are stored while statistics are computed. Ours are stored afterwards, so that a
// failed step changes nothing: LAMB really moves 44, CAME 36.
//
// --dtype bf16 measures 16-bit weights and gradients with f32 masters. The pass over the gradients
// that computes their norm and looks for non-finite values (4 more bytes) is only in the row
// "clipped", whose share counts the same bytes without it. --clock processor, for one thread,
// counts only the time for which the thread runs: on a busy machine wall time is mostly waiting.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "apogee/core/parallel.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

double Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double Seconds(clockid_t clock, const std::function<void()>& fn) {
  const double start = Now(clock);
  fn();
  return Now(clock) - start;
}

void StreamRange(int64_t n, const float* __restrict g, float* __restrict a, float* __restrict b,
                 float* __restrict c) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = g[i];
    a[i] += x;
    b[i] += x;
    c[i] += x;
  }
}

// The reference's arrays, offset against each other so that they use different cache sets.
class Streams {
 public:
  Streams(int64_t n, const ContextPtr& context) : n_(n), threads_(context->num_threads()) {
    for (int64_t k = 0; k < 4; ++k) {
      storage_.push_back(Tensor::Zeros({n + 4 * kOffset}, DType::kF32, context));
      data_.push_back(storage_.back().data<float>() + k * kOffset);
    }
  }
  void Run() {
    ParallelFor(threads_, n_, 1 << 15, [&](int64_t begin, int64_t end) {
      StreamRange(end - begin, data_[0] + begin, data_[1] + begin, data_[2] + begin,
                  data_[3] + begin);
    });
  }

 private:
  static constexpr int64_t kOffset = 16 * 17;  // 17 cache lines
  int64_t n_;
  int threads_;
  std::vector<Tensor> storage_;
  std::vector<float*> data_;
};

// Per layer twelve d x d blocks of weights; embeddings get an eighth of the parameters.
struct Model {
  Model(int64_t budget, DType dtype, const ContextPtr& context) {
    constexpr int64_t kWidth = 512;
    const auto add = [&](const Shape& shape) {
      const std::string name = internal::Concat("p", params.size());
      params.push_back(std::make_shared<autograd::Parameter>(name, Random(shape, dtype, context)));
      params.back()->set_grad_dtype(dtype);
      params.back()->set_grad(Random(shape, dtype, context));
      n += shape.numel();
    };
    add({std::max<int64_t>(1, budget / 8 / kWidth), kWidth});
    while (n + 12 * kWidth * kWidth <= budget) {
      for (const int64_t rows : {3 * kWidth, kWidth, 4 * kWidth}) {
        add({rows, kWidth});
        add({rows});
      }
      add({kWidth, 4 * kWidth});
      for (int k = 0; k < 5; ++k) add({kWidth});
    }
  }

  int64_t n = 0;
  std::vector<autograd::ParameterPtr> params;

 private:
  // Uniform in [-0.5, 0.5).
  Tensor Random(const Shape& shape, DType dtype, const ContextPtr& context) {
    Tensor tensor = Tensor::Zeros(shape, DType::kF32, context);
    float* x = tensor.data<float>();
    for (int64_t i = 0; i < shape.numel(); ++i) {
      seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
      x[i] = static_cast<float>(seed_ >> 40) * 0x1p-24f - 0.5f;
    }
    return dtype == DType::kF32 ? tensor : tensor.To(dtype);
  }
  uint64_t seed_ = 1;
};

struct Row {
  const char* label;
  const char* name;  // the name in the registry
  optim::OptionMap options;
  double bytes;    // memory traffic per parameter
  int grad_reads;  // reads of the gradient in `bytes`, 4 bytes each
  double max_norm = 0;
};
const std::vector<Row>& Rows() {
  static const auto& rows = *new std::vector<Row>{
      {"sgd, momentum", "sgd", {{"momentum", "0.9"}}, 20, 1},
      {"adamw", "adamw", {}, 28, 1},
      {"adamw, clipped", "adamw", {}, 28, 1, 1.0},
      {"lion", "lion", {}, 20, 1},
      {"lars", "lars", {}, 28, 2},
      {"lamb", "lamb", {{"weight_decay", "0.01"}}, 40, 1},
      {"adafactor", "adafactor", {}, 24, 3},
      {"came", "came", {}, 32, 3},
      {"scaled_adam", "scaled_adam", {}, 36, 2},
      {"adamw8bit", "adamw8bit", {}, 16, 1},
  };
  return rows;
}

const char* Flag(int argc, char** argv, const char* name, const char* value) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return value;
}
int64_t Number(int argc, char** argv, const char* name, const char* value) {
  return std::max<int64_t>(1, std::atoll(Flag(argc, argv, name, value)));
}

int Main(int argc, char** argv) {
  const auto threads = static_cast<int>(Number(argc, argv, "--threads", "1"));
  const int64_t repeats = Number(argc, argv, "--repeats", "9");
  const DType dtype = DTypeFromName(Flag(argc, argv, "--dtype", "f32"));
  const std::string only = Flag(argc, argv, "--only", "");
  const bool processor = std::strcmp(Flag(argc, argv, "--clock", "wall"), "processor") == 0;
  if (processor && threads != 1) {
    std::fprintf(stderr, "optim_bench: --clock processor needs --threads 1\n");
    return 1;
  }
  const clockid_t clock = processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const ContextPtr context = CpuContext({.num_threads = threads});
  Model model(Number(argc, argv, "--params", "33554432"), dtype, context);
  Streams streams(model.n, context);
  std::printf("%lld %s parameters in %zu tensors, %d threads, best of %lld\n",
              static_cast<long long>(model.n), DTypeName(dtype), model.params.size(), threads,
              static_cast<long long>(repeats));
  std::printf("%-16s %6s %9s %7s %11s\n", "", "bytes", "ms", "GB/s", "% streaming");
  for (const Row& row : Rows()) {
    if (!only.empty() && only != row.name) continue;
    const auto optimizer = ValueOrThrow(optim::MakeOptimizer(row.name, model.params, row.options));
    optim::StepOptions step{.max_norm = row.max_norm};
    if (row.max_norm == 0) step.nonfinite = optim::NonFinitePolicy::kProceed;
    optimizer->set_step_options(step);
    double stream = 1e30, update = 1e30;
    for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first warms up the memory
      const double s = Seconds(clock, [&] { streams.Run(); });
      const double u = Seconds(clock, [&] { optimizer->step(); });
      if (repeat < 0) continue;
      stream = std::min(stream, s);
      update = std::min(update, u);
    }
    const bool half = DTypeSize(dtype) == 2;
    const double bytes = row.bytes + (half ? 2 - 2 * row.grad_reads : 0);
    const double rate = bytes * static_cast<double>(model.n) / update / 1e9;
    const double stream_rate = 28 * static_cast<double>(model.n) / stream / 1e9;
    std::printf("%-16s %6.0f %9.2f %7.2f %11.1f\n", row.label, bytes, update * 1e3, rate,
                100 * rate / stream_rate);
  }
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
