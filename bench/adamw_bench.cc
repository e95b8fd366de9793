// How close an AdamW step comes to the speed of memory. A step on f32 weights reads weights,
// gradients and two moments and writes all but the gradients: 28 bytes per parameter. The
// yardstick, measured in the same run and interleaved with it, is a loop with the same four read
// and three write streams and almost no arithmetic.
//
//   adamw_bench [--params 33554432] [--tensors 32] [--threads 1] [--repeats 15] [--dtype f32]
//
// With 16 bit weights and gradients the step moves 28 bytes too: f32 master weights and moments
// read and written, 2 bytes of gradient read, 2 of working weights written.
//
// "update only" leaves out the pass over the gradients that looks for non-finite values and takes
// their norm (4 more bytes per parameter; its share counts the 28 bytes all the same).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "apogee/core/parallel.h"
#include "apogee/optim/adam.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

constexpr double kBytesPerParam = 28;

double Seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

// Streams of the benchmark's own, offset against each other so that they share no set of the
// caches.
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

struct Model {
  Model(int64_t n, int64_t num_tensors, DType dtype, const ContextPtr& context) {
    for (int64_t k = 0; k < num_tensors; ++k) {
      params.push_back(std::make_shared<autograd::Parameter>(
          internal::Concat("p", k), Tensor::Full({n / num_tensors}, dtype, 0.5, context)));
      params.back()->set_grad(Tensor::Full({n / num_tensors}, dtype, 1e-3, context));
    }
  }
  std::vector<autograd::ParameterPtr> params;
};

const char* Flag(int argc, char** argv, const char* name, const char* value) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return value;
}
int64_t Number(int argc, char** argv, const char* name, const char* value) {
  return std::max<int64_t>(1, std::atoll(Flag(argc, argv, name, value)));
}

void Report(const char* what, double seconds, int64_t n, double yardstick) {
  const double rate = kBytesPerParam * static_cast<double>(n) / seconds / 1e9;
  std::printf("%-22s %7.2f ms  %6.2f GB/s  %5.1f %% of streaming\n", what, seconds * 1e3, rate,
              100 * yardstick / seconds);
}

int Main(int argc, char** argv) {
  const int64_t tensors = Number(argc, argv, "--tensors", "32");
  const int64_t n =
      std::max<int64_t>(1, Number(argc, argv, "--params", "33554432") / tensors) * tensors;
  const auto threads = static_cast<int>(Number(argc, argv, "--threads", "1"));
  const int64_t repeats = Number(argc, argv, "--repeats", "15");
  const DType dtype = DTypeFromName(Flag(argc, argv, "--dtype", "f32"));
  const ContextPtr context = CpuContext({.num_threads = threads});

  Streams streams(n, context);
  Model model(n, tensors, dtype, context);
  optim::AdamW optimizer(model.params, {.lr = 1e-4, .weight_decay = 0.01});
  double stream = 1e30, update = 1e30, step = 1e30;
  for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first touches the memory
    const double s = Seconds([&] { streams.Run(); });
    optimizer.set_step_options({.nonfinite = optim::NonFinitePolicy::kProceed});
    const double u = Seconds([&] { optimizer.step(); });
    optimizer.set_step_options({.max_norm = 1.0});
    const double w = Seconds([&] { optimizer.step(); });
    if (repeat < 0) continue;
    stream = std::min(stream, s);
    update = std::min(update, u);
    step = std::min(step, w);
  }
  std::printf("%lld %s parameters in %lld tensors, %d threads, best of %lld\n",
              static_cast<long long>(n), DTypeName(dtype), static_cast<long long>(tensors), threads,
              static_cast<long long>(repeats));
  Report("streaming", stream, n, stream);
  Report("AdamW, update only", update, n, stream);
  Report("AdamW, norm and clip", step, n, stream);
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
