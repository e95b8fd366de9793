// SPDX-License-Identifier: Apache-2.0

// The rates of the two kernels that dominate a training step, in the shapes of a small GPT (batch
// 8, 256 tokens, model size 384, 6 heads). Causal attention counts half the FLOPs of full
// attention.
//
//   kernels_bench --benchmark_filter='MatMul/bf16'
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee {
namespace {

Tensor Random(const Shape& shape, DType dtype, const ContextPtr& context, const std::string& name) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, name));
  return x.To(dtype);
}

void SetRate(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

struct Product {
  const char* name;
  int64_t m, n, k;
  bool a_trans, b_trans;
};
constexpr Product kProducts[] = {
    {"qkv", 2048, 1152, 384, false, false},       {"mlp_up", 2048, 1536, 384, false, false},
    {"mlp_down", 2048, 384, 1536, false, false},  {"head", 2048, 8192, 384, false, true},
    {"input_grad", 2048, 384, 1536, false, true}, {"weight_grad", 384, 1536, 2048, true, false},
};

void MatMul(benchmark::State& state, const Product& p, DType dtype, int num_threads) {
  const ContextPtr context = CpuContext({.num_threads = num_threads});
  const Tensor a = Random(p.a_trans ? Shape{p.k, p.m} : Shape{p.m, p.k}, dtype, context, "a");
  const Tensor b = Random(p.b_trans ? Shape{p.n, p.k} : Shape{p.k, p.n}, dtype, context, "b");
  for (auto _ : state) {
    benchmark::DoNotOptimize(ops::MatMul(a, b, {.a_trans = p.a_trans, .b_trans = p.b_trans}));
  }
  SetRate(state, 2.0 * static_cast<double>(p.m * p.n * p.k));
}

constexpr int64_t kHeads = 6, kHeadDim = 64;

// `batch` sequences of `documents` documents of equal length, which do not attend to each other.
struct Sequences {
  int64_t batch, tokens, documents;
};

void Attention(benchmark::State& state, const Sequences& s, bool backward, DType dtype,
               int num_threads) {
  const ContextPtr context = CpuContext({.num_threads = num_threads});
  const auto packed = [&](const char* name) {
    return Random({s.batch, s.tokens, 3 * kHeads, kHeadDim}, dtype, context, name);
  };
  const auto unpack = [](const Tensor& x) {
    return ops::Qkv{x.Slice(2, 0, kHeads), x.Slice(2, kHeads, kHeads),
                    x.Slice(2, 2 * kHeads, kHeads)};
  };
  const ops::Qkv qkv = unpack(packed("qkv")), grads = unpack(packed("grads"));
  const Tensor dout = Random({s.batch, s.tokens, kHeads, kHeadDim}, dtype, context, "dout");
  ops::AttentionOptions options{.causal = true};
  const int64_t length = s.tokens / s.documents;
  if (s.documents > 1) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < s.batch * s.tokens; ++i) {
      starts.push_back(i % s.tokens / length * length);
    }
    options.first_keys = Tensor::FromVector<int64_t>(starts, {s.batch, s.tokens}, context);
  }
  const ops::AttentionResult forward = ops::AttentionForward(qkv, options);
  for (auto _ : state) {
    if (backward) {
      ops::AttentionBackward(qkv, forward, dout, options, grads);
    } else {
      benchmark::DoNotOptimize(ops::AttentionForward(qkv, options));
    }
  }
  const double flops = 2.0 * static_cast<double>(s.batch * kHeads * s.tokens * length * kHeadDim);
  SetRate(state, flops * (backward ? 2.5 : 1));  // 5 products per tile instead of 2
}

const bool kRegistered = [] {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int num_threads : {1, 2}) {
      const std::string suffix =
          std::string("/") + DTypeName(dtype) + "/threads:" + std::to_string(num_threads);
      for (const Product& product : kProducts) {
        benchmark::RegisterBenchmark(("MatMul/" + std::string(product.name) + suffix).c_str(),
                                     MatMul, product, dtype, num_threads)
            ->UseRealTime();
      }
      for (bool backward : {false, true}) {
        const std::string name = backward ? "AttentionBackward" : "AttentionForward";
        benchmark::RegisterBenchmark((name + suffix).c_str(), Attention, Sequences{8, 256, 1},
                                     backward, dtype, num_threads)
            ->UseRealTime();
        for (int64_t documents : {1, 8}) {
          benchmark::RegisterBenchmark(
              (name + "/2048/documents:" + std::to_string(documents) + suffix).c_str(), Attention,
              Sequences{1, 2048, documents}, backward, dtype, num_threads)
              ->UseRealTime();
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace apogee
