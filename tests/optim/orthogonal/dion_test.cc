// SPDX-License-Identifier: Apache-2.0

// Dion against plain loops in double; fused matrices; momentum of low rank; skipped steps; bad
// options. `apogee verify` replays the authors' code, and the matrix compares ranks.
#include "apogee/optim/orthogonal/dion.h"

#include <gmock/gmock-matchers.h>

#include <cmath>

#include "apogee/tests/optim/layerwise_checks.h"
#include "apogee/tests/optim/orthogonal/matrix_run.h"
#include "apogee/tests/support/says.h"

namespace apogee::optim {
namespace dion_test {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::RandomTensor;
using testing::Says;
using testing::matrices::CheckOverflow;
using testing::matrices::Matrix;
using testing::matrices::MatrixRun;
using testing::matrices::Product;
using testing::matrices::Transposed;
using Values = std::vector<double>;
using Trained = MatrixRun<Dion>;

// Orthonormal columns with the span of those of x, one after the other.
Matrix GramSchmidt(Matrix x) {
  for (int64_t c = 0; c < x.cols; ++c) {
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < c; ++k) {
        double overlap = 0;
        for (int64_t r = 0; r < x.rows; ++r) overlap += x.at(r, k) * x.at(r, c);
        for (int64_t r = 0; r < x.rows; ++r) x.at(r, c) -= overlap * x.at(r, k);
      }
    }
    double square = 0;
    for (int64_t r = 0; r < x.rows; ++r) square += x.at(r, c) * x.at(r, c);
    for (int64_t r = 0; r < x.rows; ++r) x.at(r, c) /= std::sqrt(square);
  }
  return x;
}

// A step of the paper on B = M + G, which is not wider than high.
struct ByHand {
  Matrix b, p, r, q;
  void Step(const DionOptions& o) {
    for (int64_t i = 0; i < o.power_iters; ++i) {
      p = GramSchmidt(Product(b, q));
      r = Product(Transposed(b), p);
      q = r;
    }
    const Matrix caught = Product(p, Transposed(r));
    for (size_t i = 0; i < b.x.size(); ++i) b.x[i] -= (1 - o.mu) * caught.x[i];
    for (int64_t c = 0; c < q.cols; ++c) {
      double square = 0;
      for (int64_t i = 0; i < q.rows; ++i) square += q.at(i, c) * q.at(i, c);
      for (int64_t i = 0; i < q.rows; ++i) q.at(i, c) /= std::sqrt(square) + o.eps;
    }
  }
};

struct Case {
  int64_t rows, cols, rank;
  double fraction;
  int64_t multiple;
};
constexpr Case kCases[] = {{1, 1, 1, 1, 1},      {1, 7, 1, 0.25, 1},   {7, 1, 1, 0.5, 4},
                           {3, 11, 2, 0.5, 1},   {11, 3, 3, 1, 1},     {9, 9, 4, 0.25, 4},
                           {65, 34, 9, 0.25, 1}, {34, 65, 32, 0.9, 16}};

TEST(DionTest, IsTheFormula) {
  for (const Case& c : kCases) {
    for (const int64_t iterations : {1, 2}) {
      const DionOptions o{.lr = 0.1,
                          .mu = 0.9,
                          .weight_decay = 0.2,
                          .rank_fraction = c.fraction,
                          .rank_multiple_of = c.multiple,
                          .power_iters = iterations};
      Trained run({c.rows, c.cols}, o);
      const bool wide = c.rows < c.cols;
      const int64_t large = std::max(c.rows, c.cols), small = std::min(c.rows, c.cols);
      // A start of our own, as `apogee verify` makes.
      run.optimizer.states().Make(run.optimizer.views()[0], 0);
      const Values start = RandomTensor({small, c.rank}, "q", run.context).ToVector<double>();
      run.optimizer.views()[0].state("Q").SetValues(start);
      ByHand hand{.b = {large, small, Values(static_cast<size_t>(large * small), 0)},
                  .p = {},
                  .r = {},
                  .q = {small, c.rank, start}};
      Values w = run.values();
      for (int step = 0; step < 4; ++step) {
        const Tensor gradient = run.Gradient(step);
        run.Step(gradient);
        Matrix g{c.rows, c.cols, gradient.ToVector<double>()};
        if (wide) g = Transposed(g);
        for (size_t i = 0; i < g.x.size(); ++i) hand.b.x[i] += g.x[i];
        hand.Step(o);
        Matrix update = Product(hand.p, Transposed(hand.q));
        if (wide) update = Transposed(update);
        const double scale = std::sqrt(static_cast<double>(c.rows) / static_cast<double>(c.cols));
        for (size_t i = 0; i < w.size(); ++i) w[i] -= 0.1 * (0.2 * w[i] + scale * update.x[i]);
      }
      const std::string what = internal::Concat(c.rows, "x", c.cols, " rank ", c.rank);
      EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-9), w)) << what;
      const Matrix momentum = wide ? Transposed(hand.b) : hand.b;
      EXPECT_THAT(run.optimizer.views()[0].state("momentum").ToVector<double>(),
                  Pointwise(DoubleNear(1e-9), momentum.x))
          << what;
      EXPECT_EQ(run.optimizer.views()[0].state("Q").numel(), small * c.rank) << what;
    }
  }
}

// Fused rows, a batch and a convolution have the momentum and the basis of their matrices alone.
TEST(DionTest, MatricesOfOneTensorAreIndependent) {
  struct Fused {
    Shape shape;
    std::vector<int64_t> sections;
    std::vector<Shape> parts;
  };
  const Fused cases[] = {{{12, 5}, {6, 2, 4}, {{6, 5}, {2, 5}, {4, 5}}},
                         {{3, 4, 5}, {}, {{4, 5}, {4, 5}, {4, 5}}},
                         {{6, 2, 3, 3}, {}, {{6, 18}}}};
  for (const Fused& c : cases) {
    const DionOptions o{.weight_decay = 0.1, .rank_fraction = 0.5};
    DionOptions fused = o;
    fused.sections = c.sections;
    Trained whole(c.shape, fused);
    const Values first = whole.values();
    whole.optimizer.states().Make(whole.optimizer.views()[0], 0);
    const Tensor basis = whole.optimizer.views()[0].state("Q");
    basis.SetValues(RandomTensor(basis.shape(), "q", whole.context).ToVector<double>());
    const Values bases = basis.ToVector<double>();
    Values want;
    int64_t at = 0, basis_at = 0;
    for (const Shape& shape : c.parts) {
      Trained part(shape, o);
      const auto slice = [](const Values& all, int64_t from, int64_t count) {
        return Values(all.begin() + from, all.begin() + from + count);
      };
      const auto own = [&](const Values& all) {
        return Tensor::FromVector(slice(all, at, shape.numel()), shape, part.context);
      };
      part.parameter->data().CopyFrom(own(first));
      part.optimizer.states().Make(part.optimizer.views()[0], 0);
      const Tensor q = part.optimizer.views()[0].state("Q");
      q.SetValues(slice(bases, basis_at, q.numel()));
      for (int step = 0; step < 3; ++step) {
        part.Step(own(whole.Gradient(step).ToVector<double>()));
      }
      const Values values = part.values();
      want.insert(want.end(), values.begin(), values.end());
      at += shape.numel();
      basis_at += q.numel();
    }
    for (int step = 0; step < 3; ++step) whole.Step(whole.Gradient(step));
    EXPECT_THAT(whole.values(), Pointwise(DoubleNear(1e-12), want)) << c.shape;
  }
}

// A momentum of rank 1 under a basis of rank 3: the other two columns are rounding errors, and
// move nothing.
TEST(DionTest, RoundingMovesNothing) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Trained run({8, 6}, {.lr = 1, .weight_decay = 0, .rank_fraction = 0.5}, "w", dtype);
    Values outer(48);
    for (size_t i = 0; i < 48; ++i) {
      outer[i] = std::sin(1.0 + static_cast<double>(i / 6)) * std::cos(static_cast<double>(i % 6));
    }
    const double length = Norm(outer);
    const Values before = run.values();
    run.Step(Tensor::FromVector(outer, {8, 6}, run.context));
    const Values after = run.values();
    for (size_t i = 0; i < 48; ++i) {
      EXPECT_NEAR(after[i] - before[i], -std::sqrt(8.0 / 6.0) * outer[i] / length,
                  dtype == DType::kF64 ? 1e-7 : 1e-5);
    }
    run.Step(run.Gradient(1));  // goes on
    for (const double value : run.values()) EXPECT_TRUE(std::isfinite(value));
  }
}

// Zeros move nothing, but for the decay; the basis begins as without them.
TEST(DionTest, ZerosFirst) {
  Trained run({5, 4}, {.lr = 0.1, .weight_decay = 0.5, .rank_fraction = 1});
  Trained other({5, 4}, {.lr = 0.1, .weight_decay = 0.5, .rank_fraction = 1});
  Values before = run.values();
  run.Step(Tensor::Zeros({5, 4}, DType::kF64, run.context));
  for (double& value : before) value *= 0.95;
  EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-14), before));
  other.parameter->data().CopyFrom(run.parameter->data());
  run.Step(run.Gradient(1));
  other.Step(other.Gradient(1));
  EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-10), other.values()));
}

TEST(DionTest, AnOverflowLeavesEverythingAsItWas) { CheckOverflow<Dion>({}); }

TEST(DionTest, EverythingElse) {
  CheckEverythingButEquations([](auto params) {
    return std::make_unique<Dion>(params, DionOptions{.lr = 0.01, .weight_decay = 0.1});
  });
}

TEST(DionTest, BadOptions) {
  const auto made = [](const DionOptions& options) { return [=] { Trained({6, 4}, options); }; };
  EXPECT_THAT(made({.rank_fraction = 1.5}), Says(HasSubstr("must be at most 1")));
  EXPECT_THAT(made({.rank_fraction = 0}), Says(HasSubstr("rank_fraction")));
  EXPECT_THAT(made({.mu = 1}), Says(HasSubstr("mu")));
  EXPECT_THAT(made({.power_iters = 0}), Says(HasSubstr("power_iters")));
  EXPECT_THAT(made({.sections = {4, 3}}), Says(HasSubstr("sections have 7 rows together")));
}

}  // namespace dion_test
}  // namespace apogee::optim
