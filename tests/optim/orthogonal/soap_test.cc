// SPDX-License-Identifier: Apache-2.0

// SOAP against plain loops in double; null spaces that rounding must not move; fused tensors;
// vectors and tables; skipped steps; bad options. `apogee verify` replays the authors' code, and
// the matrix compares ranks.
#include "apogee/optim/orthogonal/soap.h"

#include <gmock/gmock-matchers.h>

#include <cmath>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/orthogonal/eigen_basis.h"
#include "apogee/tests/optim/layerwise_checks.h"
#include "apogee/tests/optim/orthogonal/matrix_run.h"
#include "apogee/tests/support/says.h"

namespace apogee::optim {
namespace soap_test {

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
using Trained = MatrixRun<Soap>;

Matrix Identity(int64_t n) {
  Matrix m{n, n, Values(static_cast<size_t>(n * n), 0)};
  for (int64_t i = 0; i < n; ++i) m.at(i, i) = 1;
  return m;
}

// The columns of x in the order of falling `keys`.
Matrix Sorted(const Matrix& x, const Values& keys) {
  std::vector<int64_t> order;
  for (int64_t c = 0; c < x.cols; ++c) order.push_back(c);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](int64_t c) { return keys[static_cast<size_t>(c)]; });
  Matrix y = x;
  for (int64_t c = 0; c < x.cols; ++c) {
    for (int64_t r = 0; r < x.rows; ++r) y.at(r, c) = x.at(r, order[static_cast<size_t>(c)]);
  }
  return y;
}

// Eigenvectors by Jacobi's rotations.
Matrix Eigenvectors(Matrix a) {
  const int64_t n = a.rows;
  Matrix v = Identity(n);
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (a.at(p, q) == 0) continue;
        const double theta = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        Matrix turn = Identity(n);
        turn.at(p, p) = turn.at(q, q) = std::cos(theta);
        turn.at(p, q) = std::sin(theta);
        turn.at(q, p) = -std::sin(theta);
        a = Product(Transposed(turn), Product(a, turn));
        v = Product(v, turn);
      }
    }
  }
  Values keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back(a.at(i, i));
  return Sorted(v, keys);
}

Matrix OrthonormalByHand(Matrix x) {
  for (int64_t c = 0; c < x.cols; ++c) {
    for (int64_t k = 0; k < c; ++k) {
      double overlap = 0;
      for (int64_t r = 0; r < x.rows; ++r) overlap += x.at(r, k) * x.at(r, c);
      for (int64_t r = 0; r < x.rows; ++r) x.at(r, c) -= overlap * x.at(r, k);
    }
    double square = 0;
    for (int64_t r = 0; r < x.rows; ++r) square += x.at(r, c) * x.at(r, c);
    for (int64_t r = 0; r < x.rows; ++r) x.at(r, c) /= std::sqrt(square);
  }
  return x;
}

// One side of a matrix.
struct Side {
  bool rotates;
  Matrix l, q;
  void Add(const Matrix& gram, double b) {
    for (size_t i = 0; i < gram.x.size(); ++i) l.x[i] = b * l.x[i] + (1 - b) * gram.x[i];
  }
  // The estimates that sort the basis.
  Values Keys() const {
    const Matrix estimates = Product(Transposed(q), Product(l, q));
    Values keys;
    for (int64_t i = 0; i < q.cols; ++i) keys.push_back(estimates.at(i, i));
    return keys;
  }
};

Side SideOf(int64_t n, bool rotates) {
  return {rotates, {n, n, Values(static_cast<size_t>(n * n), 0)}, Identity(n)};
}

struct Case {
  int64_t rows, cols, frequency;
  bool one_sided;
};

TEST(SoapTest, IsTheFormula) {
  for (const Case& c :
       {Case{6, 6, 1, false}, Case{6, 6, 2, false}, Case{4, 9, 1, true}, Case{9, 4, 3, true}}) {
    for (const bool correct : {true, false}) {
      const SoapOptions o{.lr = 0.1,
                          .betas = {0.8, 0.9},
                          .shampoo_beta = 0.7,
                          .eps = 1e-6,
                          .weight_decay = 0.2,
                          .precondition_frequency = c.frequency,
                          .one_sided = c.one_sided,
                          .correct_bias = correct};
      Trained run({c.rows, c.cols}, o);
      Side left = SideOf(c.rows, !c.one_sided || c.rows <= c.cols);
      Side right = SideOf(c.cols, !c.one_sided || c.cols < c.rows);
      Matrix w{c.rows, c.cols, run.values()};
      Matrix m{c.rows, c.cols, Values(w.x.size(), 0)}, v = m;
      for (int step = 0; step < 8; ++step) {
        const Tensor gradient = run.Gradient(step);
        run.Step(gradient);
        const Matrix g{c.rows, c.cols, gradient.ToVector<double>()};
        if (step > 0) {
          const Matrix r = Product(Transposed(left.q), Product(g, right.q));
          Matrix u = r;
          for (size_t i = 0; i < r.x.size(); ++i) {
            m.x[i] = 0.8 * m.x[i] + 0.2 * r.x[i];
            v.x[i] = 0.9 * v.x[i] + 0.1 * r.x[i] * r.x[i];
            u.x[i] = m.x[i] / (std::sqrt(v.x[i]) + 1e-6);
          }
          u = Product(left.q, Product(u, Transposed(right.q)));
          const double rate =
              correct ? 0.1 * std::sqrt(1 - std::pow(0.9, step)) / (1 - std::pow(0.8, step)) : 0.1;
          for (size_t i = 0; i < u.x.size(); ++i) {
            w.x[i] -= rate * u.x[i];
            w.x[i] -= 0.1 * 0.2 * w.x[i];
          }
        }
        left.Add(Product(g, Transposed(g)), 0.7);
        right.Add(Product(Transposed(g), g), 0.7);
        if (step == 0) {
          if (left.rotates) left.q = Eigenvectors(left.l);
          if (right.rotates) right.q = Eigenvectors(right.l);
        } else if (step % c.frequency == 0) {
          m = Product(left.q, Product(m, Transposed(right.q)));
          if (left.rotates) {
            const Values keys = left.Keys();
            v = Transposed(Sorted(Transposed(v), keys));
            left.q = OrthonormalByHand(Product(left.l, Sorted(left.q, keys)));
          }
          if (right.rotates) {
            const Values keys = right.Keys();
            v = Sorted(v, keys);
            right.q = OrthonormalByHand(Product(right.l, Sorted(right.q, keys)));
          }
          m = Product(Transposed(left.q), Product(m, right.q));
        }
      }
      EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-8), w.x))
          << c.rows << "x" << c.cols << " every " << c.frequency;
    }
  }
}

// The longer side of a matrix has a null space at first, and after few steps at a refresh, too.
TEST(SoapTest, RoundingDoesNotMoveNullSpaces) {
  for (const Shape& shape : {Shape{12, 2}, Shape{2, 12}, Shape{3, 2, 9}, Shape{7, 1}}) {
    for (const int64_t frequency : {1, 2, 10}) {
      const SoapOptions o{.lr = 0.1, .precondition_frequency = frequency};
      Trained run(shape, o), other(shape, o);
      for (int step = 0; step < 6; ++step) {
        const Tensor gradient = run.Gradient(step);
        run.Step(gradient);
        Values moved = gradient.ToVector<double>();
        for (size_t i = 0; i < moved.size(); ++i) {
          moved[i] *= 1 + 1e-14 * std::sin(static_cast<double>(7 * i));
        }
        other.Step(Tensor::FromVector(moved, shape, other.context));
      }
      EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-8), other.values()))
          << shape << " every " << frequency;
    }
  }
}

// In the null space of the tridiagonal matrix all entries are rounding errors.
TEST(EigenBasisTest, MatricesOfLowRank) {
  const ContextPtr context = TestContext();
  for (int seed = 0; seed < 60; ++seed) {
    const int64_t n = 64, rank = 15;
    Values values =
        RandomTensor({n, rank}, internal::Concat("low", seed), context).ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] *= std::pow(0.4, static_cast<double>(i % static_cast<size_t>(rank)));
    }
    const Matrix x{n, rank, values};
    const Matrix gram = Product(x, Transposed(x));
    const Matrix q{n, n,
                   EigenBasis(Tensor::FromVector(gram.x, {n, n}, context)).ToVector<double>()};
    const Matrix diagonal = Product(Transposed(q), Product(gram, q));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        ASSERT_NEAR(diagonal.at(i, j), 0, 1e-13 * diagonal.at(0, 0)) << seed;
      }
    }
    EXPECT_GT(diagonal.at(rank - 1, rank - 1), 1e-12 * diagonal.at(0, 0));
  }
}

TEST(SoapTest, SectionsAreIndependent) {
  const SoapOptions o{.lr = 0.1, .precondition_frequency = 2};
  SoapOptions fused = o;
  fused.sections = {6, 2, 4};
  Trained whole({12, 5}, fused);
  const Values first = whole.values();
  for (int step = 0; step < 5; ++step) whole.Step(whole.Gradient(step));
  Values want;
  for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, 6}, {6, 2}, {8, 4}}) {
    Trained part({rows, 5}, o);
    const auto own = [&, begin = row * 5](const Values& all) {
      const Values some(all.begin() + begin, all.begin() + begin + part.parameter->shape().numel());
      return Tensor::FromVector(some, part.parameter->shape(), part.context);
    };
    part.parameter->data().CopyFrom(own(first));
    for (int step = 0; step < 5; ++step) {
      part.Step(own(whole.Gradient(step).ToVector<double>()));
    }
    const Values values = part.values();
    want.insert(want.end(), values.begin(), values.end());
  }
  EXPECT_THAT(whole.values(), Pointwise(DoubleNear(1e-9), want));
  // Vectors and tables beside it have no sections.
  EXPECT_NO_THROW(Trained({5}, fused));
  EXPECT_NO_THROW(Trained({7, 3}, fused, "lm_head.weight"));
}

// Vectors, and matrices whose dims are too large, get Adam with the decay after the update; the
// first gradient moves nothing. Tables get AdamW.
TEST(SoapTest, WithoutBases) {
  for (const Shape& shape : {Shape{7}, Shape{}, Shape{7, 9}}) {
    Trained run(shape, {.lr = 0.1, .weight_decay = 0.2, .max_precond_dim = 4});
    Values w = run.values(), m(w.size(), 0), v(w.size(), 0);
    for (int step = 0; step < 4; ++step) {
      const Values g = run.Gradient(step).ToVector<double>();
      run.Step(run.Gradient(step));
      for (size_t i = 0; step > 0 && i < w.size(); ++i) {
        m[i] = 0.95 * m[i] + 0.05 * g[i];
        v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
        const double c = 1 - std::pow(0.95, step);
        w[i] -= 0.1 * std::sqrt(c) / c * m[i] / (std::sqrt(v[i]) + 1e-8);
        w[i] -= 0.1 * 0.2 * w[i];
      }
    }
    EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-12), w)) << shape;
  }
  Trained table({7, 3}, {.lr = 0.1, .weight_decay = 0.2}, "lm_head.weight");
  const auto adam =
      std::make_shared<autograd::Parameter>("lm_head.weight", table.parameter->data().Clone());
  AdamW reference(std::vector<autograd::ParameterPtr>{adam},
                  {.lr = 0.1, .betas = {0.9, 0.95}, .weight_decay = 0.2});
  table.Step(table.Gradient(0));
  adam->AccumulateGrad(table.Gradient(0));
  reference.step();
  EXPECT_EQ(table.values(), adam->data().ToVector<double>());
  EXPECT_THAT(table.optimizer.note(), HasSubstr("AdamW trains lm_head.weight"));
}

TEST(SoapTest, AnOverflowLeavesEverythingAsItWas) {
  CheckOverflow<Soap>({.precondition_frequency = 1});
}

// Zeros first: the bases are unit vectors, and later ones are those of the gradients.
TEST(SoapTest, ZerosFirst) {
  Trained run({4, 3}, {.lr = 0.1, .weight_decay = 0});
  const Values before = run.values();
  run.Step(Tensor::Zeros({4, 3}, DType::kF64, run.context));
  EXPECT_EQ(run.values(), before);
  run.Step(run.Gradient(1));
  const Values g = run.Gradient(1).ToVector<double>();
  for (size_t i = 0; i < g.size(); ++i) {  // Adam's first step: the sign
    EXPECT_NEAR(run.values()[i], before[i] - 0.1 * (g[i] > 0 ? 1 : -1), 1e-6);
  }
}

TEST(SoapTest, EverythingElse) {
  for (const bool normalize : {false, true}) {
    CheckEverythingButEquations([=](auto params) {
      return std::make_unique<Soap>(params, SoapOptions{.lr = 0.01,
                                                        .weight_decay = 0.1,
                                                        .precondition_frequency = 2,
                                                        .max_precond_dim = 64,
                                                        .precondition_1d = true,
                                                        .normalize_grads = normalize});
    });
  }
}

TEST(SoapTest, StateBytes) {
  Trainee run([](auto params) { return std::make_unique<Soap>(params, SoapOptions{}); },
              DType::kF32, {{8, 5}, {7}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer), 8 * (8 * 5 + 8 * 8 + 5 * 5 + 7));
}

TEST(SoapTest, BadOptions) {
  const auto made = [](const SoapOptions& options) { return [=] { Trained({6, 4}, options); }; };
  EXPECT_THAT(made({.shampoo_beta = 1}), Says(HasSubstr("must be below 1")));
  EXPECT_THAT(made({.precondition_frequency = 0}), Says(HasSubstr("precondition_frequency")));
  EXPECT_THAT(made({.max_precond_dim = 0}), Says(HasSubstr("max_precond_dim")));
  EXPECT_THAT(made({.sections = {4, 3}}), Says(HasSubstr("sections have 7 rows together")));
}

}  // namespace soap_test
}  // namespace apogee::optim
