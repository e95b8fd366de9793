// SPDX-License-Identifier: Apache-2.0

// Checks that every layer-wise optimizer must pass: equations, shards, resuming, threads, master
// weights, failures. Each check trains a few tensors of awkward shapes with full-rank random
// gradients.
//
//   CheckEquations([](auto params) { return std::make_unique<Lamb>(params, LambOptions{}); },
//                  LambRule({}));
#ifndef APOGEE_TESTS_OPTIM_LAYERWISE_CHECKS_H_
#define APOGEE_TESTS_OPTIM_LAYERWISE_CHECKS_H_

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "apogee/optim/optimizer.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterPtr>)>;
using Vector = std::vector<double>;
using Vectors = std::map<std::string, Vector>;
// One update of a tensor in f64; `t` counts its updates from 1, `s` is its state.
using TensorRule =
    std::function<void(const Shape& shape, Vector& w, const Vector& g, Vectors& s, int t)>;

inline std::vector<Shape> LayerwiseShapes() {
  std::vector<Shape> shapes = AwkwardShapes();
  shapes.push_back({3, 2, 3, 3});
  shapes.push_back({5, 4100});
  return shapes;
}

// Parameters and gradients of a run, the same for every optimizer that is compared.
struct Trainee {
  Trainee(const MakeOptimizer& make, DType dtype, std::vector<Shape> tensor_shapes, int threads = 2)
      : context(TestContext({.num_threads = threads})), shapes(std::move(tensor_shapes)) {
    for (const Shape& shape : shapes) {
      params.push_back(
          RandomParam(internal::Concat("p", params.size()), shape, dtype, context, params.size()));
    }
    optimizer = make(params);
  }
  static Vector Grad(const Shape& shape, size_t p, int step) {
    const bool zero = (static_cast<int>(p) + step) % 7 == 0;
    return RandomValues(shape.numel(), 1000 * p + static_cast<uint64_t>(step), zero ? 0 : 1);
  }
  static bool Absent(size_t p, int step) { return (static_cast<int>(p) + step) % 5 == 0; }
  void Step(int step, DType grad_dtype) {
    optimizer->zero_grad();
    for (size_t p = 0; p < params.size(); ++p) {
      if (Absent(p, step)) continue;
      params[p]->set_grad_dtype(grad_dtype);
      params[p]->set_grad(
          Tensor::FromVector(Grad(shapes[p], p, step), shapes[p], context, grad_dtype));
    }
    optimizer->step();
  }
  void Step(int step) { Step(step, params[0]->data().dtype()); }
  std::vector<Vector> Weights() const {
    std::vector<Vector> weights;
    for (const ParameterPtr& p : params) weights.push_back(Values(p->data()));
    return weights;
  }
  // Every state of every parameter.
  Vectors States() const {
    Vectors states;
    for (const ParamView& view : std::as_const(*optimizer).views()) {
      for (const NamedState& s : view.states())
        states[view.name() + "/" + s.name] = Values(s.value);
    }
    return states;
  }

  ContextPtr context;
  std::vector<Shape> shapes;
  std::vector<ParameterPtr> params;
  std::unique_ptr<Optimizer> optimizer;
};

inline void CheckEquations(const MakeOptimizer& make, const TensorRule& rule, int steps = 20) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Trainee run(make, dtype, LayerwiseShapes());
    const std::vector<Vector> init = run.Weights();
    std::vector<Vector> expected = init;
    std::vector<Vectors> states(init.size());
    std::vector<int> counts(init.size());
    for (int step = 1; step <= steps; ++step) {
      run.Step(step);
      for (size_t p = 0; p < init.size(); ++p) {
        if (Trainee::Absent(p, step)) continue;
        const Vector g = Values(Tensor::FromVector(Trainee::Grad(run.shapes[p], p, step),
                                                   run.shapes[p], run.context, dtype));
        rule(run.shapes[p], expected[p], g, states[p], ++counts[p]);
      }
    }
    for (size_t p = 0; p < init.size(); ++p) {
      // Relative to the update, and half an ulp of the weight per operation on it: small rates are
      // lost there.
      const Vector w = run.Weights()[p];
      Vector error(w.size()), update(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        error[i] = w[i] - expected[p][i];
        update[i] = expected[p][i] - init[p][i];
      }
      const double ulp = dtype == DType::kF64 ? 2.2e-16 : 1.2e-7;
      EXPECT_LE(Norm(error),
                Tolerance(dtype, ErrorKind::kEndToEnd) * Norm(update) + steps * ulp * Norm(w))
          << DTypeName(dtype) << " " << run.shapes[p];
      EXPECT_EQ(run.optimizer->views()[p].step(), counts[p]);
    }
  }
}

// Adds the partials of two ranks, which run in threads of their own.
struct Exchange {
  std::barrier<> barrier{2};
  const StatBuffer* buffers[2] = {};
};
class ExchangeReducer : public StatReducer {
 public:
  ExchangeReducer(Exchange& exchange, int rank) : exchange_(exchange), rank_(rank) {}
  void Reduce(StatBuffer& buffer) override {
    exchange_.buffers[rank_] = &buffer;
    exchange_.barrier.arrive_and_wait();
    Vector sums = Values(exchange_.buffers[0]->sum_values());
    Vector maxima = Values(exchange_.buffers[0]->max_values());
    const Vector other_sums = Values(exchange_.buffers[1]->sum_values());
    const Vector other_maxima = Values(exchange_.buffers[1]->max_values());
    exchange_.barrier.arrive_and_wait();
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += other_sums[i];
    for (size_t i = 0; i < maxima.size(); ++i) maxima[i] = std::max(maxima[i], other_maxima[i]);
    Store(buffer.sum_values(), sums);
    Store(buffer.max_values(), maxima);
  }

 private:
  static void Store(const Tensor& to, const Vector& values) {
    to.CopyFrom(Tensor::FromVector(values, to.shape(), HostOf(to.context())));
  }
  Exchange& exchange_;
  int rank_;
};

// Two ranks that hold the elements up to and from a cut in the middle of a row, or both hold
// everything (replicas), end up where one rank does: weights, and states that are not cut.
inline void CheckSharded(const MakeOptimizer& make, bool replicas = false, int steps = 6) {
  const std::vector<Shape> shapes = {{5, 7}, {33, 17}, {4, 6, 5}, {3, 2, 3, 3},
                                     {37},   {1, 9},   {9, 1},    {2}};
  Trainee whole(make, DType::kF64, shapes);
  const std::vector<Vector> init = whole.Weights();
  for (int step = 1; step <= steps; ++step) whole.Step(step);
  Exchange exchange;
  const auto run_rank = [&](int rank) {
    Trainee part(make, DType::kF64, shapes, 1);
    part.optimizer->set_stat_reducer(std::make_unique<ExchangeReducer>(exchange, rank));
    std::vector<int64_t> begins, lengths;
    for (size_t p = 0; p < shapes.size(); ++p) {
      const int64_t numel = shapes[p].numel();
      const int64_t cut = numel * 3 / 7;
      begins.push_back(rank == 0 || replicas ? 0 : cut);
      lengths.push_back(replicas ? numel : rank == 0 ? cut : numel - cut);
    }
    const auto slice = [&](const Vector& x, size_t p) {
      Vector values(x.begin() + begins[p], x.begin() + begins[p] + lengths[p]);
      values.push_back(1e30);  // padding: must never count
      return Tensor::FromVector(values, {lengths[p] + 1}, part.context);
    };
    for (size_t p = 0; p < shapes.size(); ++p) {
      LayoutOptions layout{.segments = {{begins[p], lengths[p]}}, .num_replicas = replicas ? 2 : 1};
      part.optimizer->views()[p].BindShard(slice(init[p], p), Layout(shapes[p], layout));
      part.optimizer->views()[p].set_owner(static_cast<int>(p % 2) == rank);
    }
    for (int step = 1; step <= steps; ++step) {
      part.optimizer->zero_grad();
      for (size_t p = 0; p < shapes.size(); ++p) {
        if (Trainee::Absent(p, step)) continue;
        part.optimizer->views()[p].set_grad(slice(Trainee::Grad(shapes[p], p, step), p));
      }
      part.optimizer->step();
    }
    for (size_t p = 0; p < shapes.size(); ++p) {
      const ParamView& view = part.optimizer->views()[p];
      const Vector local = Values(view.value()), expected = whole.Weights()[p];
      for (int64_t i = 0; i < lengths[p]; ++i) {
        const auto at = static_cast<size_t>(begins[p] + i);
        EXPECT_NEAR(local[static_cast<size_t>(i)], expected[at], 1e-11)
            << shapes[p] << " element " << at;
      }
      EXPECT_EQ(local.back(), 1e30);
      for (const NamedState& state : view.states()) {
        if (state.kind == StateKind::kElementwise) continue;
        const Vector a = Values(state.value), b = whole.States().at(view.name() + "/" + state.name);
        for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12 * std::fabs(b[i]));
      }
    }
  };
  std::thread other(run_rank, 1);
  run_rank(0);
  other.join();
}

// A run that is saved and loaded in the middle has the bits of one that is not.
inline void CheckResume(const MakeOptimizer& make) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    Trainee straight(make, dtype, AwkwardShapes()), resumed(make, dtype, AwkwardShapes());
    for (int step = 1; step <= 3; ++step) straight.Step(step);
    StateDict dict = straight.optimizer->state_dict();
    for (auto& [name, param] : dict.params) {
      for (auto& [key, state] : param.states) state.value = state.value.Clone();
    }
    for (size_t p = 0; p < resumed.params.size(); ++p) {
      resumed.params[p]->data().CopyFrom(straight.params[p]->data());
    }
    const absl::Status status = resumed.optimizer->load_state_dict(dict);
    ASSERT_TRUE(status.ok()) << status;
    for (int step = 4; step <= 6; ++step) {
      straight.Step(step);
      resumed.Step(step);
    }
    EXPECT_EQ(straight.Weights(), resumed.Weights());
    EXPECT_EQ(straight.States(), resumed.States());
  }
}

// Whether a product of matrices, as low-rank optimizers compute it, has other bits on another
// number of threads. It does where oneDNN finds no AVX-512, and without OpenMP.
inline bool ProductsDependOnThreads() {
  const auto product = [](int threads, int64_t rows, int64_t rank, int64_t cols) {
    const ContextPtr context = CpuContext({.num_threads = threads});
    const auto matrix = [&](int64_t m, int64_t n) {
      std::vector<float> values(static_cast<size_t>(m * n));
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
      return Tensor::FromVector<float>(values, {m, n}, context);
    };
    Vector bits = ops::MatMul(matrix(rows, cols), matrix(cols, rank)).ToVector<double>();
    const Vector other =
        ops::MatMulTransA(matrix(rows, rank), matrix(rows, cols), DType::kF32).ToVector<double>();
    bits.insert(bits.end(), other.begin(), other.end());
    return bits;
  };
  for (const int64_t rank : {3, 4}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{701, 301}, {3, 5000}, {4097, 33}}) {
      const Vector one = product(1, rows, rank, cols);
      if (product(2, rows, rank, cols) != one || product(3, rows, rank, cols) != one) return true;
    }
  }
  return false;
}

inline void CheckThreads(const MakeOptimizer& make) {
  std::vector<std::vector<Vector>> results;
  for (const int threads : {1, 2, 3}) {
    Trainee run(make, DType::kF32, {{701, 301}, {3, 5000}, {4097, 33}, {100003}}, threads);
    for (int step = 1; step <= 3; ++step) run.Step(step);
    results.push_back(run.Weights());
  }
  if (!ProductsDependOnThreads()) {
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    return;
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    for (size_t j = 0; j < results[0][i].size(); ++j) {
      EXPECT_NEAR(results[0][i][j], results[1][i][j], 1e-4) << i << " " << j;
      EXPECT_NEAR(results[0][i][j], results[2][i][j], 1e-4) << i << " " << j;
    }
  }
}

// A bf16 run's masters have the bits of an f32 run that starts from the same weights and is fed the
// same gradients; the working weights are the masters, rounded.
inline void CheckMasters(const MakeOptimizer& make) {
  Trainee low(make, DType::kBF16, LayerwiseShapes()), full(make, DType::kF32, LayerwiseShapes());
  for (size_t p = 0; p < low.params.size(); ++p)
    full.params[p]->data().CopyFrom(low.params[p]->data().To(DType::kF32));
  for (int step = 1; step <= 4; ++step) {
    low.Step(step, DType::kBF16);
    full.Step(step, DType::kBF16);
  }
  for (size_t p = 0; p < low.params.size(); ++p) {
    const Tensor master = low.optimizer->views()[p].own_master();
    EXPECT_EQ(Values(master), Values(full.params[p]->data())) << low.shapes[p];
    EXPECT_EQ(Values(master.To(DType::kBF16)), Values(low.params[p]->data()));
  }
}

// Fails the reduction number `at`.
class FailingReducer : public StatReducer {
 public:
  explicit FailingReducer(int at) : left_(at) {}
  void Reduce(StatBuffer&) override {
    if (left_-- == 0) Throw("the network is gone");
  }

 private:
  int left_;
};

// Whichever reduction of a step fails, weights, states and counts stay as they were.
inline void CheckFailedReduction(const MakeOptimizer& make) {
  Trainee run(make, DType::kF32, {{33, 17}, {7}});
  run.Step(1);
  const auto weights = run.Weights();
  const Vectors states = run.States();
  int failures = 0;
  for (int at = 0;; ++at, ++failures) {
    run.optimizer->set_stat_reducer(std::make_unique<FailingReducer>(at));
    try {
      run.Step(2);
      break;
    } catch (const Error&) {
      EXPECT_EQ(run.Weights(), weights) << "reduction " << at;
      EXPECT_EQ(run.States(), states) << "reduction " << at;
      EXPECT_EQ(run.optimizer->views()[0].step(), 1);
    }
  }
  EXPECT_GT(failures, 0);
  EXPECT_NE(run.Weights(), weights);
}

// Bytes of states, masters left out.
inline int64_t StateBytes(const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const ParamView& view : optimizer.views()) {
    for (const NamedState& s : view.states()) bytes += s.value.numel() * DTypeSize(s.value.dtype());
  }
  return bytes;
}

inline void CheckEverythingButEquations(const MakeOptimizer& make) {
  CheckSharded(make);
  CheckSharded(make, /*replicas=*/true);
  CheckResume(make);
  CheckThreads(make);
  CheckMasters(make);
  CheckFailedReduction(make);
}

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_LAYERWISE_CHECKS_H_
