// SPDX-License-Identifier: Apache-2.0

// GaLore's basis refresh compared with LAPACK's gesdd, and AdamW with 8-bit states compared with
// AdamW.
//
//   low_rank_bench [n] [rank] [threads] [million parameters]      # 2048 128 2 32
//
// The matrix is n x n with singular values i^-0.5: there is no gap between them, the hard case.
// gesdd comes from the system's LAPACK, opened at run time; without one its line is left out.
// "Captured energy" is the squared norm of the projected matrix divided by the best possible.
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/lowbit/adamw8bit.h"
#include "apogee/optim/lowrank/low_rank_basis.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee {
namespace {

double Seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Best(int repeats, const std::function<void()>& fn) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) best = std::min(best, Seconds(fn));
  return best;
}

Tensor Random(const Shape& shape, const ContextPtr& context, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (float& x : values) x = normal(engine);
  return Tensor::FromVector(values, shape, context);
}

// H diag(i^-0.5) K, where H and K are products of reflections: the singular values are exact
// without a decomposition.
Tensor WithDecay(int64_t n, const ContextPtr& context) {
  std::vector<float> a(static_cast<size_t>(n * n), 0);
  for (int64_t i = 0; i < n; ++i) {
    a[static_cast<size_t>(i * n + i)] = 1 / std::sqrt(static_cast<float>(i + 1));
  }
  Tensor x = Tensor::FromVector(a, {n, n}, context);
  for (unsigned k = 0; k < 6; ++k) {
    Tensor v = Random({n, 1}, context, k);
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += std::pow(v.data<float>()[i], 2);
    const Tensor row = ops::MatMul(v, x, {.a_trans = true});  // v^T x
    for (int64_t i = 0; i < n; ++i) {
      const auto factor = static_cast<float>(2 * v.data<float>()[i] / squares);
      for (int64_t j = 0; j < n; ++j) x.data<float>()[i * n + j] -= factor * row.data<float>()[j];
    }
    x = x.Transpose(0, 1).Contiguous();
  }
  return x;
}

using Gesdd = void (*)(const char*, const int*, const int*, float*, const int*, float*, float*,
                       const int*, float*, const int*, float*, const int*, int*, int*);

double GesddSeconds(const Tensor& g) {
  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (library == nullptr) library = dlopen("liblapack.so.3", RTLD_NOW);
  if (library == nullptr) return 0;
  auto* gesdd = reinterpret_cast<Gesdd>(dlsym(library, "sgesdd_"));
  if (gesdd == nullptr) return 0;
  const int n = static_cast<int>(g.size(0));
  const auto count = static_cast<size_t>(n) * static_cast<size_t>(n);
  std::vector<float> a = g.ToVector<float>(), s(static_cast<size_t>(n)), u(count), vt(count);
  std::vector<int> iwork(static_cast<size_t>(8 * n));
  float size = 0;
  int lwork = -1, info = 0;
  gesdd("S", &n, &n, a.data(), &n, s.data(), u.data(), &n, vt.data(), &n, &size, &lwork,
        iwork.data(), &info);
  lwork = static_cast<int>(size);
  std::vector<float> work(static_cast<size_t>(lwork));
  return Seconds([&] {
    gesdd("S", &n, &n, a.data(), &n, s.data(), u.data(), &n, vt.data(), &n, work.data(), &lwork,
          iwork.data(), &info);
  });
}

void BenchBasis(int64_t n, int64_t rank, const ContextPtr& context) {
  const Tensor g = WithDecay(n, context);
  optim::BasisResult basis;
  const double seconds =
      Best(3, [&] { basis = optim::LeadingBasis(g, {.rank = rank, .left = false}); });
  double energy = 0, best = 0;
  const std::vector<double> projected =
      ops::MatMul(g, basis.right, {.b_trans = true}).ToVector<double>();
  for (const double x : projected) energy += x * x;
  for (int64_t i = 0; i < rank; ++i) best += 1 / static_cast<double>(i + 1);
  std::printf(
      "basis %lld x %lld rank %lld: %.3f s, %d iterations, captured energy %.5f of the best\n",
      static_cast<long long>(n), static_cast<long long>(n), static_cast<long long>(rank), seconds,
      basis.iterations, energy / best);
  const double peer = GesddSeconds(g);
  if (peer > 0) std::printf("LAPACK gesdd: %.3f s, %.1f times as long\n", peer, peer / seconds);
}

template <typename OptimizerType, typename Options>
double StepSeconds(int64_t params, const Options& options, const ContextPtr& context) {
  auto p = std::make_shared<autograd::Parameter>("w", Random({params / 1024, 1024}, context, 1));
  p->set_grad(Random({params / 1024, 1024}, context, 2));
  OptimizerType optimizer({p}, options);
  optimizer.set_step_options({.nonfinite = optim::NonFinitePolicy::kProceed});
  optimizer.step();
  return Best(9, [&] { optimizer.step(); });
}

void BenchAdam(int64_t params, const ContextPtr& context) {
  const double full = StepSeconds<optim::AdamW>(params, optim::AdamWOptions{}, context);
  const double codes = StepSeconds<optim::AdamW8bit>(params, optim::AdamW8bitOptions{}, context);
  std::printf("update of %lld parameters: adamw %.2f ms, adamw8bit %.2f ms (%.2f of it)\n",
              static_cast<long long>(params), 1e3 * full, 1e3 * codes, codes / full);
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) {
  const auto argument = [&](int i, long fallback) {
    return argc > i ? std::strtol(argv[i], nullptr, 10) : fallback;
  };
  const apogee::ContextPtr context =
      apogee::CpuContext({.num_threads = static_cast<int>(argument(3, 2))});
  apogee::BenchAdam(argument(4, 32) << 20, context);
  apogee::BenchBasis(argument(1, 2048), argument(2, 128), context);
  return 0;
}
