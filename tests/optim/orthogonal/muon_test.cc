// SPDX-License-Identifier: Apache-2.0

// Muon and NorMuon against plain loops in double; fused matrices; skipped steps; bad options.
// `apogee verify` replays the references, and the matrix compares ranks.
#include "apogee/optim/orthogonal/muon.h"

#include <gmock/gmock-matchers.h>

#include <cmath>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/orthogonal/newton_schulz.h"
#include "apogee/tests/optim/layerwise_checks.h"
#include "apogee/tests/optim/orthogonal/matrix_run.h"
#include "apogee/tests/support/says.h"

namespace apogee::optim {
namespace muon_test {

using ::testing::AllOf;
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

// X = a X + (b A + c A^2) X with A = X X^T, on the side that is longer or not: both are the same in
// exact arithmetic.
Matrix ByHand(Matrix x, const Coefficients& coefficients, double scale) {
  for (double& v : x.x) v /= scale;
  for (const auto& [a, b, c] : coefficients) {
    const Matrix gram = Product(x, Transposed(x));
    const Matrix square = Product(gram, gram);
    Matrix polynomial = gram;
    for (size_t i = 0; i < gram.x.size(); ++i) polynomial.x[i] = b * gram.x[i] + c * square.x[i];
    const Matrix moved = Product(polynomial, x);
    for (size_t i = 0; i < x.x.size(); ++i) x.x[i] = a * x.x[i] + moved.x[i];
  }
  return x;
}

constexpr int64_t kSizes[][2] = {{1, 1}, {1, 7}, {7, 1}, {3, 11}, {11, 3}, {9, 9}, {65, 34}};

TEST(NewtonSchulzTest, IsTheIteration) {
  const ContextPtr context = TestContext();
  for (const auto& [rows, cols] : kSizes) {
    for (const char* set :
         {"simple", "quintic", "polar_express", "cans", "deepseek4", "2,-1.5,0.5"}) {
      for (const int64_t steps : {1, 5, 10}) {
        const Coefficients coefficients = ValueOrThrow(ParseCoefficients(set, steps));
        ASSERT_EQ(std::ssize(coefficients), steps);
        const Tensor x = RandomTensor({rows, cols}, set, context);
        const Values values = x.ToVector<double>();
        const Tensor got =
            Orthogonalized(x, {.coefficients = coefficients, .eps = 1e-3, .norm_scale = 1.02});
        const Matrix want = ByHand({rows, cols, values}, coefficients, 1.02 * Norm(values) + 1e-3);
        EXPECT_THAT(got.ToVector<double>(), Pointwise(DoubleNear(1e-10), want.x))
            << set << " " << rows << "x" << cols;
      }
    }
  }
}

// From 256 rows on, symmetric products are computed in parts.
TEST(NewtonSchulzTest, LargeMatricesAreTheIterationToo) {
  const ContextPtr context = TestContext();
  const Coefficients coefficients = ValueOrThrow(ParseCoefficients("simple", 2));
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{257, 300}, {310, 256}}) {
    const Tensor x = RandomTensor({rows, cols}, "large", context);
    const Values values = x.ToVector<double>();
    const Tensor got = Orthogonalized(x, {.coefficients = coefficients});
    const Matrix want = ByHand({rows, cols, values}, coefficients, Norm(values) + 1e-7);
    EXPECT_THAT(got.ToVector<double>(), Pointwise(DoubleNear(1e-10), want.x)) << rows;
  }
}

// A batch gives what its matrices give alone, bit for bit.
TEST(NewtonSchulzTest, MatricesOfOneShapeShareTheirProducts) {
  const ContextPtr context = TestContext();
  for (const bool bf16 : {false, true}) {
    const NewtonSchulz settings{.coefficients = ValueOrThrow(ParseCoefficients("simple", 5)),
                                .bf16 = bf16};
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 9}, {33, 12}, {257, 256}}) {
      std::vector<Tensor> matrices;
      for (const char* name : {"a", "b", "c"}) {
        matrices.push_back(RandomTensor({rows, cols}, name, context).To(DType::kF32));
      }
      matrices.push_back(Tensor::Zeros({rows, cols}, DType::kF32, context));
      size_t taken = 0;
      Orthogonalize(matrices, settings, [&](size_t i, const Tensor& result) {
        EXPECT_EQ(i, taken++);
        EXPECT_EQ(result.ToVector<double>(),
                  Orthogonalized(matrices[i], settings).ToVector<double>())
            << rows << "x" << cols << ", matrix " << i;
      });
      EXPECT_EQ(taken, matrices.size());
    }
  }
}

// In bf16 the update is another one, by a few hundredths.
TEST(NewtonSchulzTest, InBf16) {
  const ContextPtr context = TestContext();
  const NewtonSchulz exact{.coefficients = ValueOrThrow(ParseCoefficients("simple", 5))};
  NewtonSchulz rounded = exact;
  rounded.bf16 = true;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = RandomTensor({24, 40}, "rounded", context).To(dtype);
    const Tensor got = Orthogonalized(x, rounded);
    EXPECT_EQ(got.dtype(), dtype);
    Values a = got.ToVector<double>();
    const Values b = Orthogonalized(x, exact).ToVector<double>();
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    EXPECT_GT(Norm(a), 1e-4 * Norm(b));
    EXPECT_LT(Norm(a), 0.05 * Norm(b));
  }
}

// The singular values of a well-conditioned matrix end near 1: X X^T is near the identity.
TEST(NewtonSchulzTest, MakesRowsOrthogonal) {
  const ContextPtr context = TestContext();
  Values x(6 * 20, 0);
  for (size_t r = 0; r < 6; ++r) {
    x[r * 20 + 3 * r] = 0.3 + 0.1 * static_cast<double>(r);
    x[r * 20 + 2 * r + 1] += 0.05;
  }
  for (const auto& [set, steps, bound] :
       {std::tuple{"simple", 5, 0.54}, {"polar_express", 8, 0.3}, {"deepseek4", 10, 2e-3}}) {
    const Tensor o = Orthogonalized(Tensor::FromVector(x, {6, 20}, context),
                                    {.coefficients = ValueOrThrow(ParseCoefficients(set, steps))});
    const Matrix m{6, 20, o.ToVector<double>()};
    const Matrix gram = Product(m, Transposed(m));
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 6; ++j) EXPECT_NEAR(gram.at(i, j), i == j ? 1 : 0, bound) << set;
    }
  }
}

using Trained = MatrixRun<Muon>;

TEST(MuonTest, IsTheFormula) {
  for (const auto& [rows, cols] : kSizes) {
    for (const bool average : {false, true}) {
      for (const bool nesterov : {false, true}) {
        for (const bool normalize : {false, true}) {
          const MuonOptions o{.lr = 0.1,
                              .momentum = 0.9,
                              .nesterov = nesterov,
                              .average = average,
                              .weight_decay = 0.2,
                              .update_scale = "rms",
                              .normalize_rows = normalize,
                              .beta2 = 0.8};
          Trained run({rows, cols}, o);
          Values w = run.values(), b(w.size(), 0), v(static_cast<size_t>(rows), 0);
          const Coefficients simple = ValueOrThrow(ParseCoefficients("simple", 5));
          for (int step = 0; step < 4; ++step) {
            const Tensor gradient = run.Gradient(step);
            const Values g = gradient.ToVector<double>();
            run.Step(gradient);
            Matrix u{rows, cols, Values(w.size())};
            for (size_t i = 0; i < w.size(); ++i) {
              const double own = average ? 0.1 * g[i] : g[i];
              b[i] = 0.9 * b[i] + own;
              u.x[i] = nesterov ? own + 0.9 * b[i] : b[i];
            }
            Matrix d = ByHand(u, simple, Norm(u.x) + 1e-7);
            if (normalize) {
              const double before = Norm(d.x);
              for (int64_t r = 0; r < rows; ++r) {
                double sum = 0;
                for (int64_t c = 0; c < cols; ++c) sum += d.at(r, c) * d.at(r, c);
                double& mean = v[static_cast<size_t>(r)];
                mean = 0.8 * mean + 0.2 * sum / static_cast<double>(cols);
                for (int64_t c = 0; c < cols; ++c) d.at(r, c) /= std::sqrt(mean) + 1e-8;
              }
              const double after = Norm(d.x);
              for (double& x : d.x) x *= before / after;
            }
            const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
            for (size_t i = 0; i < w.size(); ++i) {
              w[i] = w[i] - 0.1 * 0.2 * w[i] - 0.1 * scale * d.x[i];
            }
          }
          EXPECT_THAT(run.values(), Pointwise(DoubleNear(1e-9), w)) << rows << "x" << cols;
        }
      }
    }
  }
}

// Fused rows, a batch and a convolution move as their matrices alone do.
TEST(MuonTest, MatricesOfOneTensorAreIndependent) {
  struct Case {
    Shape shape;
    std::vector<int64_t> sections;
    bool batch;
    std::vector<Shape> parts;
  };
  const Case cases[] = {{{12, 5}, {6, 2, 4}, false, {{6, 5}, {2, 5}, {4, 5}}},
                        {{3, 4, 5}, {}, false, {{4, 5}, {4, 5}, {4, 5}}},
                        {{2, 4, 5}, {3, 1}, false, {{3, 5}, {1, 5}, {3, 5}, {1, 5}}},
                        {{6, 2, 3, 3}, {}, false, {{6, 18}}},
                        {{2, 2, 3, 4}, {}, true, {{3, 4}, {3, 4}, {3, 4}, {3, 4}}}};
  for (const Case& c : cases) {
    for (const bool normalize : {false, true}) {
      MuonOptions o{.weight_decay = 0.1, .normalize_rows = normalize};
      o.batch_convolutions = c.batch;
      MuonOptions fused = o;
      fused.sections = c.sections;
      Trained whole(c.shape, fused);
      const Values first = whole.values();
      Values want;
      int64_t at = 0;
      for (const Shape& shape : c.parts) {
        Trained part(shape, o);
        const auto own = [&](const Values& all) {
          const Values some(all.begin() + at, all.begin() + at + shape.numel());
          return Tensor::FromVector(some, shape, part.context);
        };
        part.parameter->data().CopyFrom(own(first));
        for (int step = 0; step < 3; ++step) {
          part.Step(own(whole.Gradient(step).ToVector<double>()));
        }
        const Values values = part.values();
        want.insert(want.end(), values.begin(), values.end());
        at += shape.numel();
      }
      for (int step = 0; step < 3; ++step) whole.Step(whole.Gradient(step));
      EXPECT_THAT(whole.values(), Pointwise(DoubleNear(1e-12), want)) << c.shape;
    }
  }
}

// Vectors, embeddings and outputs get AdamW.
TEST(MuonTest, TheRestIsAdamW) {
  const ContextPtr context = TestContext();
  for (const char* name : {"bias", "transformer.wte.weight", "lm_head.weight"}) {
    const Shape shape = std::string(name) == "bias" ? Shape{7} : Shape{7, 3};
    Trained run(shape, {.lr = 0.1, .weight_decay = 0.2, .adam_scale = 0.5}, name);
    const auto adam = std::make_shared<Parameter>(name, run.parameter->data().Clone());
    AdamW reference(std::vector<ParameterPtr>{adam},
                    {.lr = 0.05, .betas = {0.9, 0.95}, .weight_decay = 0.2});
    for (int step = 0; step < 3; ++step) {
      run.Step(run.Gradient(step));
      reference.zero_grad();
      adam->AccumulateGrad(run.Gradient(step));
      reference.step();
    }
    EXPECT_EQ(run.values(), adam->data().ToVector<double>()) << name;
  }
  Trained all({7, 3}, {.all_matrices = true}, "lm_head.weight");
  all.Step(all.Gradient(0));
  EXPECT_TRUE(all.optimizer.views()[0].state("momentum_buffer").defined());
}

TEST(MuonTest, AnOverflowLeavesEverythingAsItWas) {
  for (const bool normalize : {false, true}) CheckOverflow<Muon>({.normalize_rows = normalize});
}

// A checkpoint has every option: a run of another preset goes on with those of the checkpoint.
TEST(MuonTest, ACheckpointBringsItsPreset) {
  Trained torch({5, 4}, MuonOptions::Torch()), moonlight({5, 4}, MuonOptions::Moonlight());
  torch.Step(torch.Gradient(0));
  moonlight.parameter->data().CopyFrom(torch.parameter->data());
  OkOrThrow(moonlight.optimizer.load_state_dict(torch.optimizer.state_dict()));
  EXPECT_EQ(moonlight.optimizer.group_options(0), torch.optimizer.group_options(0));
  torch.Step(torch.Gradient(1));
  moonlight.Step(moonlight.Gradient(1));
  EXPECT_EQ(moonlight.values(), torch.values());
}

// A zero gradient moves by the old momentum; zeros from the start move nothing.
TEST(MuonTest, ZerosAreFinite) {
  Trained run({5, 4}, {.normalize_rows = true});
  const Values before = run.values();
  run.Step(Tensor::Zeros({5, 4}, DType::kF64, run.context));
  EXPECT_EQ(run.values(), before);
}

TEST(MuonTest, EverythingElse) {
  for (const bool normalize : {false, true}) {
    CheckEverythingButEquations([=](auto params) {
      return std::make_unique<Muon>(
          params, MuonOptions{.lr = 0.01, .weight_decay = 0.1, .normalize_rows = normalize});
    });
  }
}

TEST(MuonTest, BadOptions) {
  const ContextPtr context = TestContext();
  const auto made = [&](const MuonOptions& options) { return [=] { Trained({6, 4}, options); }; };
  EXPECT_THAT(made({.update_scale = "keler"}), Says(HasSubstr("did you mean \"keller\"?")));
  EXPECT_THAT(made({.coefficients = "cubic"}),
              Says(AllOf(HasSubstr("cubic"), HasSubstr("polar_express"))));
  EXPECT_THAT(made({.coefficients = "1,2"}), Says(HasSubstr("must be triples of numbers")));
  EXPECT_THAT(made({.clamps_norm = true, .norm_scale = 2}), Says(HasSubstr("has no effect")));
  EXPECT_THAT(made({.ns_steps = 0}), Says(HasSubstr("ns_steps")));
  EXPECT_THAT(made({.sections = {4, 3}}),
              Says(AllOf(HasSubstr("sections have 7 rows together"), HasSubstr("has 6"))));
}

}  // namespace muon_test
}  // namespace apogee::optim
