// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz by sums of products: against whole matrices, with the parts of several ranks; which
// cuts allow it; and Muon over ranks with both ways in one step.
#include "apogee/optim/orthogonal/gram_sums.h"

#include <gmock/gmock-matchers.h>

#include <cmath>

#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/orthogonal/muon.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/optim/orthogonal/matrix_run.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::optim {
namespace gram_sums_test {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::RandomTensor;
using testing::RunRanks;
using testing::matrices::MatrixRun;
using Values = std::vector<double>;

// The part of `rank` of `num_ranks`: of rows, or of the columns of every row. Parts have
// ceil(size / num_ranks) of them, as in tensor parallelism; the last ones may have fewer.
Layout PartOf(const Shape& shape, bool of_rows, int rank, int num_ranks) {
  const int64_t cols = shape[-1], rows = shape.numel() / cols, size = of_rows ? rows : cols;
  const int64_t part = (size + num_ranks - 1) / num_ranks;
  const int64_t first = std::min(size, rank * part), last = std::min(size, first + part);
  LayoutOptions options{.segments = {},
                        .cut_multiple = of_rows ? part * cols : std::gcd(part, cols)};
  if (of_rows) {
    options.segments.push_back({first * cols, (last - first) * cols});
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      options.segments.push_back({row * cols + first, last - first});
    }
  }
  return Layout(shape, std::move(options));
}

Tensor Cut(const Tensor& whole, const Layout& layout) {
  const Tensor flat = whole.View({whole.numel()});
  const Tensor part = Tensor::Empty({layout.local_numel()}, whole.dtype(), whole.context());
  int64_t at = 0;
  for (const Segment& s : layout.segments()) {
    part.Slice(0, at, s.length).CopyFrom(flat.Slice(0, s.begin, s.length));
    at += s.length;
  }
  return part;
}

// What the ranks together make of `whole`, which has one matrix for each of `matrices`.
Values ByParts(const Tensor& whole, const std::vector<MatrixPart>& matrices, bool of_rows,
               int num_ranks, const NewtonSchulz& settings) {
  std::vector<GramIteration> ranks;
  std::vector<Layout> layouts;
  int64_t num_sums = 0;
  double largest = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    layouts.push_back(PartOf(whole.shape(), of_rows, rank, num_ranks));
    const auto parts = PartsForGram(layouts.back(), matrices);
    EXPECT_TRUE(parts.has_value());
    EXPECT_EQ(parts->tall, of_rows);
    num_sums = parts->NumSums();
    ranks.emplace_back(Cut(whole, layouts.back()), *parts, settings);
    largest = std::max(largest, ranks.back().Largest());
  }
  for (GramIteration& rank : ranks) rank.SetLargest(largest);
  for (size_t step = 0; step < settings.coefficients.size(); ++step) {
    const Tensor total = Tensor::Zeros({num_sums}, whole.dtype(), whole.context());
    for (const GramIteration& rank : ranks) {
      const Tensor own = Tensor::Zeros({num_sums}, whole.dtype(), whole.context());
      rank.Write(own);
      ops::Accumulate(total, own);
    }
    for (GramIteration& rank : ranks) rank.Advance(total);
  }
  const Tensor result = Tensor::Zeros({whole.numel()}, whole.dtype(), whole.context());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Tensor own = ranks[rank].Result(std::vector<double>(matrices.size(), 1));
    if (own.defined()) AddOwn(layouts[rank], own, result);
  }
  return result.ToVector<double>();
}

Values Whole(const Tensor& x, const std::vector<MatrixPart>& matrices,
             const NewtonSchulz& settings) {
  Values all;
  for (const MatrixPart& part : matrices) {
    const Values one = Orthogonalized(part.Of(x.View({x.numel()})), settings).ToVector<double>();
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

NewtonSchulz Settings(const char* set = "simple") {
  return {.coefficients = ValueOrThrow(ParseCoefficients(set, 5)), .norm_scale = 1.02};
}

TEST(GramSumsTest, PartsMakeTheWhole) {
  const ContextPtr context = TestContext();
  struct Case {
    Shape shape;
    bool of_rows;
    std::vector<int64_t> sections;
  };
  const Case cases[] = {{{13, 4}, true, {}},     {{4, 12}, false, {}},  {{9, 1}, true, {}},
                        {{1, 24}, false, {}},    {{12, 12}, true, {}},  {{7, 12}, false, {2, 4, 1}},
                        {{3, 4, 12}, false, {}}, {{300, 260}, true, {}}};
  for (const Case& c : cases) {
    for (const int num_ranks : {2, 3, 4}) {
      const std::vector<MatrixPart> matrices = MatricesIn(c.shape, c.sections, false);
      const Tensor x = RandomTensor(c.shape, "parts", context);
      const Values want = Whole(x, matrices, Settings());
      EXPECT_THAT(ByParts(x, matrices, c.of_rows, num_ranks, Settings()),
                  Pointwise(DoubleNear(1e-11), want))
          << c.shape << " over " << num_ranks;
    }
  }
}

// Squares of these elements are no f32.
TEST(GramSumsTest, AnyScaleWorks) {
  const ContextPtr context = TestContext();
  for (const double scale : {1e-30, 1e-18, 1.0, 1e18, 1e30}) {
    const Tensor x = ops::Scale(RandomTensor({5, 12}, "scales", context), scale).To(DType::kF32);
    NewtonSchulz settings = Settings("polar_express");
    settings.eps = 1e-37;
    const std::vector<MatrixPart> matrices = MatricesIn({5, 12}, {}, false);
    EXPECT_THAT(ByParts(x, matrices, false, 3, settings),
                Pointwise(DoubleNear(1e-5), Whole(x, matrices, settings)))
        << scale;
  }
  const Tensor zeros = Tensor::Zeros({5, 12}, DType::kF32, context);
  EXPECT_EQ(ByParts(zeros, MatricesIn({5, 12}, {}, false), false, 2, Settings()), Values(60, 0));
}

TEST(GramSumsTest, OnlyTheLongerDimMayBeCut) {
  const auto parts = [](const Shape& shape, int64_t cut_multiple,
                        const std::vector<int64_t>& sections = {}) {
    const Layout layout(shape, {.segments = {}, .cut_multiple = cut_multiple});
    return PartsForGram(layout, MatricesIn(shape, sections, false)).has_value();
  };
  EXPECT_TRUE(parts({12, 4}, 24));
  EXPECT_TRUE(parts({12, 4}, 12));
  EXPECT_FALSE(parts({12, 4}, 2)) << "columns of a tall matrix, or any elements";
  EXPECT_FALSE(parts({12, 4}, 1));
  EXPECT_FALSE(parts({12, 4}, int64_t{1} << 40)) << "whole on every rank";
  EXPECT_FALSE(parts({12, 4}, 24, {6, 6})) << "rows of two matrices";
  EXPECT_TRUE(parts({4, 12}, 6));
  EXPECT_TRUE(parts({4, 12}, 6, {1, 3}));
  EXPECT_FALSE(parts({4, 12}, 24)) << "rows of a wide matrix";
  EXPECT_FALSE(parts({4, 12}, 1));
  EXPECT_FALSE(parts({3, 12, 4}, 24)) << "rows of three matrices";
}

TEST(GramSumsTest, TheCheaperWayIsTaken) {
  const auto cheaper = [](const Shape& shape, bool of_rows, int num_ranks, int64_t steps) {
    const std::vector<MatrixPart> matrices = MatricesIn(shape, {}, false);
    const auto parts = PartsForGram(PartOf(shape, of_rows, 0, num_ranks), matrices);
    return GramCostsLess(*parts, matrices, steps);
  };
  EXPECT_TRUE(cheaper({256, 1024}, false, 2, 5));
  EXPECT_TRUE(cheaper({1024, 256}, true, 2, 5));
  EXPECT_FALSE(cheaper({256, 256}, true, 2, 5)) << "five sums are more than two";
  EXPECT_TRUE(cheaper({256, 256}, true, 2, 1));
  EXPECT_FALSE(cheaper({4096, 16384}, false, 2, 5)) << "every rank would compute A A";
  EXPECT_TRUE(cheaper({2048, 32768}, false, 8, 5));
}

// A wide, a tall and a square matrix and a vector, cut over ranks: the updates of one rank, in six
// messages; without the first two in two.
TEST(GramSumsTest, MuonTakesBothWays) {
  struct Tensors {
    std::string name;
    Shape shape;
    bool of_rows;
  };
  const std::vector<Tensors> all = {{"wide", {4, 24}, false},
                                    {"tall", {24, 4}, true},
                                    {"square", {6, 6}, true},
                                    {"v", {12}, true}};
  for (const size_t first : {size_t{0}, size_t{2}}) {
    const std::vector<Tensors> tensors(all.begin() + static_cast<ptrdiff_t>(first), all.end());
    for (const int num_ranks : {2, 3}) {
      const MuonOptions options{.lr = 0.1, .weight_decay = 0.1};
      const auto gradient = [](const std::string& name, const Shape& shape, int step,
                               const ContextPtr& context) {
        return RandomTensor(shape, internal::Concat(name, step), context);
      };
      std::vector<Values> want;
      for (const auto& [name, shape, of_rows] : tensors) {
        MatrixRun<Muon> run(shape, options, name);
        for (int step = 0; step < 4; ++step) run.Step(gradient(name, shape, step, run.context));
        want.push_back(run.values());
      }
      RunRanks(num_ranks, [&](comm::World& world) {
        const ContextPtr& context = world.context();
        std::vector<autograd::ParameterPtr> parameters;
        for (const auto& [name, shape, of_rows] : tensors) {
          parameters.push_back(
              std::make_shared<autograd::Parameter>(name, RandomTensor(shape, name, context)));
        }
        Muon optimizer(parameters, options);
        std::vector<Layout> layouts;
        for (size_t i = 0; i < tensors.size(); ++i) {
          const auto& [name, shape, of_rows] = tensors[i];
          layouts.push_back(shape.rank() == 1
                                ? PartOf(Shape{shape[0], 1}, true, world.rank(), num_ranks)
                                : PartOf(shape, of_rows, world.rank(), num_ranks));
          optimizer.views()[i].BindShard(
              Cut(parameters[i]->data(), layouts[i]),
              Layout(shape,
                     {.segments = {layouts[i].segments().begin(), layouts[i].segments().end()},
                      .cut_multiple = layouts[i].cut_multiple()}));
        }
        SumStatistics(optimizer, world.group());
        EXPECT_THAT(optimizer.note(), HasSubstr("one rank computes each of 1 for the others"));
        if (first == 0) {
          EXPECT_THAT(optimizer.note(), HasSubstr("ranks sum products of their parts of 2"));
        }
        for (int step = 0; step < 4; ++step) {
          for (size_t i = 0; i < tensors.size(); ++i) {
            const Tensor g = gradient(tensors[i].name, tensors[i].shape, step, context);
            optimizer.views()[i].set_grad(Cut(g, layouts[i]));
          }
          const comm::Traffic before = world.group()->traffic();
          optimizer.step();
          const comm::Traffic traffic = world.group()->traffic() - before;
          // One more is the decision whether to step.
          EXPECT_EQ(traffic.total_calls(), (first == 0 ? 6 : 2) + 1);
        }
        for (size_t i = 0; i < tensors.size(); ++i) {
          const Tensor whole = Tensor::FromVector(want[i], tensors[i].shape, context);
          EXPECT_THAT(optimizer.views()[i].value().ToVector<double>(),
                      Pointwise(DoubleNear(1e-10), Cut(whole, layouts[i]).ToVector<double>()))
              << tensors[i].name;
        }
      });
    }
  }
}

}  // namespace gram_sums_test
}  // namespace apogee::optim
