// SPDX-License-Identifier: Apache-2.0

// Element-wise ops and reductions beside loops that read and write as many bytes and hardly
// compute. Prints, for each op, the bytes per second of its inputs and its result, and what part of
// the loop's rate that is. Tensors are larger than the caches; op and loop take turns, and the best
// time of each counts.
//
//   ops_bench [threads] [f32|bf16] [text that a name contains]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/gather.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee {
namespace {

constexpr int64_t kRows = 8192, kCols = 1024;  // 32 MiB of f32
constexpr int kRounds = 9;

double Seconds(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A loop over `reads` arrays that writes one, or adds everything up.
void Stream(int threads, const std::vector<Tensor>& reads, const Tensor* write) {
  const float* a = static_cast<const float*>(reads[0].raw());
  const float* b = static_cast<const float*>(reads.back().raw());
  const int64_t n = reads[0].bytes() / 4;
  const bool two = reads.size() > 1;
  float* y = write == nullptr ? nullptr : static_cast<float*>(write->raw());
  ParallelFor(threads, n, 1 << 16, [=](int64_t begin, int64_t end) {
    if (y == nullptr) {
      float sums[64] = {};
      for (int64_t i = begin; i + 64 <= end; i += 64) {
#pragma GCC ivdep
        for (int64_t l = 0; l < 64; ++l) sums[l] += a[i + l];
      }
      volatile float keep = sums[0] + sums[63];
      (void)keep;
    } else if (two) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
    } else {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) y[i] = 2 * a[i];
    }
  });
}

struct Op {
  std::string name;
  size_t reads;
  bool writes;  // a tensor of the input's size
  std::function<Tensor(const std::vector<Tensor>& x)> run;
};

std::vector<Op> Ops() {
  std::vector<Op> list;
  for (const auto& [name, op] : {std::pair{"exp", UnaryOp::kExp},
                                 {"log", UnaryOp::kLog},
                                 {"log1p", UnaryOp::kLog1p},
                                 {"sqrt", UnaryOp::kSqrt},
                                 {"rsqrt", UnaryOp::kRsqrt},
                                 {"abs", UnaryOp::kAbs},
                                 {"square", UnaryOp::kSquare},
                                 {"softplus", UnaryOp::kSoftplus},
                                 {"pow(1.7)", UnaryOp::kPower},
                                 {"clamp", UnaryOp::kClamp}}) {
    list.push_back(
        {name, 1, true, [op = op](const auto& x) { return ops::UnaryForward(op, x[0], 1.7, 2); }});
  }
  list.push_back({"sigmoid", 1, true, [](const auto& x) {
                    return ops::ActivationForward(Activation::kSigmoid, x[0]);
                  }});
  list.push_back({"tanh", 1, true,
                  [](const auto& x) { return ops::ActivationForward(Activation::kTanh, x[0]); }});
  list.push_back({"exp backward", 2, true, [](const auto& x) {
                    return ops::UnaryBackward(UnaryOp::kExp, x[0], x[1].Detach());
                  }});
  list.push_back({"softplus backward", 2, true, [](const auto& x) {
                    return ops::UnaryBackward(UnaryOp::kSoftplus, x[0], x[1].Detach());
                  }});
  for (const auto& [name, op] :
       {std::pair{"add", BinaryOp::kAdd}, {"div", BinaryOp::kDiv}, {"maximum", BinaryOp::kMax}}) {
    list.push_back(
        {name, 2, true, [op = op](const auto& x) { return ops::Binary(op, x[0], x[1]); }});
  }
  list.push_back(
      {"add a row", 1, true, [](const auto& x) { return ops::Add(x[0], x[1].Slice(0, 0, 1)); }});
  list.push_back({"add a column", 1, true,
                  [](const auto& x) { return ops::Add(x[0], x[1].Slice(1, 0, 1).Contiguous()); }});
  list.push_back({"softmax", 1, true, [](const auto& x) { return ops::SoftmaxForward(x[0]); }});
  list.push_back(
      {"log_softmax", 1, true, [](const auto& x) { return ops::SoftmaxForward(x[0], true); }});
  list.push_back({"cum_sum dim 1", 1, true, [](const auto& x) { return ops::CumSum(x[0], 1); }});
  list.push_back({"cum_sum dim 0", 1, true, [](const auto& x) { return ops::CumSum(x[0], 0); }});
  for (const int dim : {0, 1}) {
    const std::string end = " dim " + std::to_string(dim);
    const ops::Reduction over("reduce", {kRows, kCols}, {dim});
    list.push_back({"sum" + end, 1, false,
                    [over](const auto& x) { return ops::Sum(x[0], over, false, x[0].dtype()); }});
    list.push_back({"max" + end, 1, false, [over](const auto& x) {
                      return ops::ExtremeForward(Extreme::kMax, x[0], over).y;
                    }});
    list.push_back({"log_sum_exp" + end, 1, false, [over](const auto& x) {
                      return ops::StatisticForward(Statistic::kLogSumExp, x[0], over).y;
                    }});
    list.push_back({"var" + end, 1, false, [over](const auto& x) {
                      return ops::StatisticForward(Statistic::kVariance, x[0], over, 1).y;
                    }});
  }
  return list;
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const DType dtype = DTypeFromName(argc > 2 ? argv[2] : "f32");
  const std::string only = argc > 3 ? argv[3] : "";
  const ContextPtr context = CpuContext({.num_threads = threads});
  std::vector<Tensor> x;
  for (const char* name : {"a", "b"}) {
    const Tensor uniform = Tensor::Empty({kRows, kCols}, DType::kF32, context);
    ops::FillUniform(uniform, 0.1, 2, MakeKey(1, name));
    x.push_back(uniform.To(dtype));
  }
  std::printf("%d threads, %s, [%lld, %lld]\n%-20s %8s %14s\n", threads, DTypeName(dtype),
              static_cast<long long>(kRows), static_cast<long long>(kCols), "op", "GB/s",
              "% of streaming");
  const Tensor y = Tensor::EmptyLike(x[0]);
  for (const Op& op : Ops()) {
    if (op.name.find(only) == std::string::npos) continue;
    const std::vector<Tensor> reads(x.begin(), x.begin() + static_cast<int64_t>(op.reads));
    double ours = 1e30, stream = 1e30;
    for (int round = 0; round < kRounds; ++round) {
      stream = std::min(stream, Seconds([&] { Stream(threads, reads, op.writes ? &y : nullptr); }));
      ours = std::min(ours, Seconds([&] { op.run(x); }));
    }
    const double bytes =
        static_cast<double>(op.reads + (op.writes ? 1 : 0)) * static_cast<double>(x[0].bytes());
    std::printf("%-20s %8.1f %13.0f%%\n", op.name.c_str(), bytes / ours / 1e9, 100 * stream / ours);
  }
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
