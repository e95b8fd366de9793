// SPDX-License-Identifier: Apache-2.0

// The products of a mixture of experts against one dense product of the same work, forward and
// backward. Both run by turns; a line has the medians and their ratio.
//
//   experts_bench [THREADS] [TURNS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/grouped.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/parameter.h"
#include "apogee/bench/median.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee {
namespace {

using bench::Median;

struct Sizes {
  int64_t experts, rows, in, out;  // rows of one expert
};

autograd::ParameterPtr Random(const std::string& name, const Shape& shape, DType dtype,
                              const ContextPtr& context) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, name));
  return std::make_shared<autograd::Parameter>(name, x.To(dtype));
}

struct Seconds {
  double forward = 0, backward = 0;
};

template <typename Forward>
Seconds SecondsOf(const Forward& forward, const Tensor& dy) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const Tensor y = forward();
  const auto middle = Clock::now();
  autograd::Backward(y, {.grad = dy});
  const auto end = Clock::now();
  return {std::chrono::duration<double>(middle - start).count(),
          std::chrono::duration<double>(end - middle).count()};
}

void Compare(const Sizes& sizes, DType dtype, const ContextPtr& context, int turns) {
  const int64_t rows = sizes.experts * sizes.rows;
  const auto x = Random("x", {rows, sizes.in}, dtype, context);
  const auto dense = Random("dense", {sizes.out, sizes.in}, dtype, context);
  std::vector<autograd::ParameterPtr> experts;
  for (int64_t e = 0; e < sizes.experts; ++e) {
    experts.push_back(Random(std::to_string(e), {sizes.out, sizes.in}, dtype, context));
  }
  const std::vector<int64_t> counts(static_cast<size_t>(sizes.experts), sizes.rows);
  const Tensor dy = Random("dy", {rows, sizes.out}, dtype, context)->data();
  const auto grouped = [&] {
    std::vector<Tensor> values;
    for (const auto& expert : experts) values.push_back(expert->value());
    return autograd::GroupedLinear(x->value(), counts, values);
  };
  const auto one = [&] { return autograd::Linear(x->value(), dense->value(), {}); };
  std::vector<double> forward[2], backward[2];
  for (int turn = 0; turn < turns + 1; ++turn) {
    const Seconds seconds[2] = {SecondsOf(grouped, dy), SecondsOf(one, dy)};
    for (const auto& expert : experts) expert->zero_grad();
    dense->zero_grad();
    x->zero_grad();
    for (int i = 0; i < 2 && turn > 0; ++i) {
      forward[i].push_back(seconds[i].forward);
      backward[i].push_back(seconds[i].backward);
    }
  }
  const double ratio = Median(forward[1]) / Median(forward[0]);
  const double back = Median(backward[1]) / Median(backward[0]);
  std::printf(
      "%s %3ld experts x %4ld rows, %4ld -> %4ld: forward %7.3f ms, dense / experts %.3f; "
      "backward %7.3f ms, dense / experts %.3f\n",
      DTypeName(dtype), static_cast<long>(sizes.experts), static_cast<long>(sizes.rows),
      static_cast<long>(sizes.in), static_cast<long>(sizes.out), Median(forward[0]) * 1e3, ratio,
      Median(backward[0]) * 1e3, back);
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2, turns = argc > 2 ? std::atoi(argv[2]) : 15;
  const apogee::ContextPtr context = apogee::CpuContext({.num_threads = threads});
  for (const apogee::DType dtype : {apogee::DType::kF32, apogee::DType::kBF16}) {
    for (const apogee::Sizes& sizes :
         {apogee::Sizes{8, 64, 384, 1024}, apogee::Sizes{8, 128, 512, 1024},
          apogee::Sizes{16, 64, 512, 512}, apogee::Sizes{8, 256, 512, 1408},
          apogee::Sizes{8, 16, 384, 1024}}) {
      apogee::Compare(sizes, dtype, context, turns);
    }
  }
  return 0;
}
