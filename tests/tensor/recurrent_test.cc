// SPDX-License-Identifier: Apache-2.0

// The cells of GRU and LSTM against plain loops in double, of torch's formulas.
#include "apogee/tensor/ops/recurrent.h"

#include <gmock/gmock-matchers.h>

#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace recurrent_test {

using Values = std::vector<double>;
using ::testing::AllOf;
using ::testing::HasSubstr;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Sizes {
  int64_t rows, units;
};
constexpr Sizes kSizes[] = {{1, 1}, {3, 5}, {2, 16}, {7, 37}, {33, 129}};

// Calls fn(position of [row, unit], position of section s of it in a row of `sections`).
template <typename Fn>
void ForUnits(const Sizes& sizes, const Fn& fn) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    for (int64_t u = 0; u < sizes.units; ++u) {
      fn(static_cast<size_t>(row * sizes.units + u), [=](int64_t sections, int64_t s) {
        return static_cast<size_t>((row * sections + s) * sizes.units + u);
      });
    }
  }
}

class RecurrentCells : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  DType wide() const { return StatisticDType(GetParam()); }
  void ExpectNear(const Buffer& got, const Values& want) const {
    ExpectClose(got.values(), want, 4 * Tolerance(got.dtype(), ErrorKind::kElementwise));
  }

  const ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_P(RecurrentCells, GruForward) {
  for (const Sizes& sizes : kSizes) {
    const int64_t n = sizes.rows * sizes.units;
    const Buffer x = Buffer::Normal(dtype(), 3 * n, 1, 2), p = Buffer::Normal(wide(), 3 * n, 2, 2);
    const Buffer h = Buffer::Normal(dtype(), n, 3);
    Buffer y(dtype(), n), gates(dtype(), 4 * n), alone(dtype(), n);
    GruCellForwardArgs args{dtype(),  x.data(),     p.data(),   h.data(),
                            y.data(), gates.data(), sizes.rows, sizes.units};
    context_->kernels().gru_cell_forward(*context_, args);
    args.y = alone.data(), args.gates = nullptr;
    context_->kernels().gru_cell_forward(*context_, args);
    Values want_y(static_cast<size_t>(n)), want_gates(static_cast<size_t>(4 * n));
    const Values xs = x.values(), ps = p.values(), hs = h.values();
    ForUnits(sizes, [&](size_t at, const auto& of) {
      const double r = Sigmoid(xs[of(3, 0)] + ps[of(3, 0)]);
      const double z = Sigmoid(xs[of(3, 1)] + ps[of(3, 1)]);
      const double new_state = std::tanh(xs[of(3, 2)] + r * ps[of(3, 2)]);
      want_y[at] = (1 - z) * new_state + z * hs[at];
      want_gates[of(4, 0)] = r, want_gates[of(4, 1)] = z;
      want_gates[of(4, 2)] = new_state, want_gates[of(4, 3)] = ps[of(3, 2)];
    });
    ExpectNear(y, want_y);
    ExpectNear(gates, want_gates);
    EXPECT_EQ(alone.bytes(), y.bytes());
  }
}

TEST_P(RecurrentCells, GruBackward) {
  for (const Sizes& sizes : kSizes) {
    const int64_t n = sizes.rows * sizes.units;
    const Buffer gates = Buffer::Normal(dtype(), 4 * n, 1, 0.4);
    const Buffer h = Buffer::Normal(dtype(), n, 2), dy = Buffer::Normal(dtype(), n, 3);
    const Buffer dproduct = Buffer::Normal(wide(), n, 4);
    Buffer dstate = Buffer::Normal(wide(), n, 5), dx(dtype(), 3 * n), dp(dtype(), 3 * n);
    const Values g = gates.values(), hs = h.values(), dys = dy.values();
    const Values dps = dproduct.values(), ds = dstate.values();
    context_->kernels().gru_cell_backward(
        *context_, {dtype(), gates.data(), h.data(), dy.data(), dproduct.data(), dstate.data(),
                    dx.data(), dp.data(), sizes.rows, sizes.units});
    Values want_dx(static_cast<size_t>(3 * n)), want_dp = want_dx;
    Values want_dstate(static_cast<size_t>(n));
    ForUnits(sizes, [&](size_t at, const auto& of) {
      const double r = g[of(4, 0)], z = g[of(4, 1)], c = g[of(4, 2)], product = g[of(4, 3)];
      const double dh = dys[at] + dps[at] + ds[at];
      const double dc = dh * (1 - z) * (1 - c * c);
      want_dx[of(3, 0)] = want_dp[of(3, 0)] = dc * product * r * (1 - r);
      want_dx[of(3, 1)] = want_dp[of(3, 1)] = dh * (hs[at] - c) * z * (1 - z);
      want_dx[of(3, 2)] = dc;
      want_dp[of(3, 2)] = dc * r;
      want_dstate[at] = dh * z;
    });
    ExpectNear(dx, want_dx);
    ExpectNear(dp, want_dp);
    ExpectNear(dstate, want_dstate);
  }
}

TEST_P(RecurrentCells, LstmForward) {
  for (const Sizes& sizes : kSizes) {
    const int64_t n = sizes.rows * sizes.units;
    const Buffer x = Buffer::Normal(dtype(), 4 * n, 1, 2), p = Buffer::Normal(wide(), 4 * n, 2, 2);
    const Buffer c = Buffer::Normal(wide(), n, 3);
    Buffer c_next(wide(), n), y(dtype(), n), gates(dtype(), 4 * n), alone(dtype(), n);
    LstmCellForwardArgs args{dtype(),  x.data(),     p.data(),   c.data(),   c_next.data(),
                             y.data(), gates.data(), sizes.rows, sizes.units};
    context_->kernels().lstm_cell_forward(*context_, args);
    args.y = alone.data(), args.gates = nullptr;
    context_->kernels().lstm_cell_forward(*context_, args);
    Values want_y(static_cast<size_t>(n)), want_c = want_y;
    Values want_gates(static_cast<size_t>(4 * n));
    const Values xs = x.values(), ps = p.values(), cs = c.values();
    ForUnits(sizes, [&](size_t at, const auto& of) {
      const auto sum = [&](int64_t s) { return xs[of(4, s)] + ps[of(4, s)]; };
      const double i = Sigmoid(sum(0)), f = Sigmoid(sum(1));
      const double g = std::tanh(sum(2)), o = Sigmoid(sum(3));
      want_c[at] = f * cs[at] + i * g;
      want_y[at] = o * std::tanh(want_c[at]);
      want_gates[of(4, 0)] = i, want_gates[of(4, 1)] = f;
      want_gates[of(4, 2)] = g, want_gates[of(4, 3)] = o;
    });
    ExpectNear(c_next, want_c);
    ExpectNear(y, want_y);
    ExpectNear(gates, want_gates);
    EXPECT_EQ(alone.bytes(), y.bytes());
  }
}

TEST_P(RecurrentCells, LstmBackward) {
  for (const Sizes& sizes : kSizes) {
    const int64_t n = sizes.rows * sizes.units;
    const Buffer gates = Buffer::Normal(dtype(), 4 * n, 1, 0.4);
    const Buffer c = Buffer::Normal(wide(), n, 2), c_next = Buffer::Normal(wide(), n, 3);
    const Buffer dy = Buffer::Normal(dtype(), n, 4), dproduct = Buffer::Normal(wide(), n, 5);
    Buffer dstate = Buffer::Normal(wide(), n, 6), dx(dtype(), 4 * n);
    const Values all = gates.values(), cs = c.values(), next = c_next.values();
    const Values dys = dy.values(), dps = dproduct.values(), ds = dstate.values();
    context_->kernels().lstm_cell_backward(
        *context_, {dtype(), gates.data(), c.data(), c_next.data(), dy.data(), dproduct.data(),
                    dstate.data(), dx.data(), sizes.rows, sizes.units});
    Values want_dx(static_cast<size_t>(4 * n)), want_dstate(static_cast<size_t>(n));
    ForUnits(sizes, [&](size_t at, const auto& of) {
      const double i = all[of(4, 0)], f = all[of(4, 1)], g = all[of(4, 2)], o = all[of(4, 3)];
      const double t = std::tanh(next[at]), dh = dys[at] + dps[at];
      const double dc = ds[at] + dh * o * (1 - t * t);
      want_dx[of(4, 0)] = dc * g * i * (1 - i);
      want_dx[of(4, 1)] = dc * cs[at] * f * (1 - f);
      want_dx[of(4, 2)] = dc * i * (1 - g * g);
      want_dx[of(4, 3)] = dh * t * o * (1 - o);
      want_dstate[at] = dc * f;
    });
    ExpectNear(dx, want_dx);
    ExpectNear(dstate, want_dstate);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RecurrentCells, ::testing::ValuesIn(kFloats));

// Gates saturate without NaN; a NaN is not lost.
TEST(RecurrentCells, InfinityAndNaN) {
  const ContextPtr context = TestContext();
  for (const DType dtype : kFloats) {
    // Columns: r, z, n of a unit with infinite sums and of one with a NaN.
    const Buffer x(dtype, {INFINITY, NAN, -INFINITY, 0, INFINITY, 0});
    const Buffer p(StatisticDType(dtype), {0, 0, 0, 0, 1, 1}), h(dtype, {3, 3});
    Buffer y(dtype, 2);
    context->kernels().gru_cell_forward(
        *context, {dtype, x.data(), p.data(), h.data(), y.data(), nullptr, 1, 2});
    EXPECT_EQ(y.values()[0], 1);  // z = 0, n = 1
    EXPECT_TRUE(std::isnan(y.values()[1]));
  }
}

TEST(RecurrentCells, SameBitsForAnyNumberOfThreads) {
  const int64_t rows = 61, units = 517, n = rows * units;
  const Buffer x = Buffer::Normal(DType::kF32, 4 * n, 1), p = Buffer::Normal(DType::kF32, 4 * n, 2);
  const Buffer c = Buffer::Normal(DType::kF32, n, 3);
  ExpectSameBits([&](const DeviceContext& context) {
    Buffer c_next(DType::kF32, n), y(DType::kF32, n);
    context.kernels().lstm_cell_forward(context, {DType::kF32, x.data(), p.data(), c.data(),
                                                  c_next.data(), y.data(), nullptr, rows, units});
    return y.bytes();
  });
}

TEST(RecurrentCells, StepsThatDoNotFit) {
  const ContextPtr context = TestContext();
  const auto zeros = [&](const Shape& shape, DType dtype) {
    return Tensor::Zeros(shape, dtype, context);
  };
  const DType bf16 = DType::kBF16, f32 = DType::kF32;
  const ops::GruForwardStep good{.x = zeros({2, 9}, bf16),
                                 .product = zeros({2, 9}, f32),
                                 .h = zeros({2, 3}, bf16),
                                 .y = zeros({2, 3}, bf16),
                                 .gates = {}};
  EXPECT_NO_THROW(ops::GruCellForward(good));
  ops::GruForwardStep step = good;
  step.x = zeros({2, 8}, bf16);
  EXPECT_THAT([&] { ops::GruCellForward(step); }, testing::Says(HasSubstr("[rows, 3 units]")));
  step = good;
  step.product = zeros({2, 9}, bf16);
  EXPECT_THAT([&] { ops::GruCellForward(step); },
              testing::Says(AllOf(HasSubstr("product is bf16 [2, 9]"), HasSubstr("f32 [2, 9]"))));
  step = good;
  step.gates = zeros({2, 9}, bf16);
  EXPECT_THAT([&] { ops::GruCellForward(step); },
              testing::Says(AllOf(HasSubstr("gates is bf16 [2, 9]"), HasSubstr("bf16 [2, 12]"))));
  const ops::LstmForwardStep lstm{.x = zeros({2, 12}, bf16),
                                  .product = zeros({2, 12}, f32),
                                  .c = zeros({2, 3}, bf16),
                                  .c_next = zeros({2, 3}, f32),
                                  .y = zeros({2, 3}, bf16),
                                  .gates = {}};
  EXPECT_THAT([&] { ops::LstmCellForward(lstm); },
              testing::Says(HasSubstr("lstm cell: c is bf16 [2, 3], must be f32 [2, 3]")));
}

// The product of a step goes into memory that all steps share.
TEST(RecurrentCells, ProductsIntoGivenMemory) {
  const ContextPtr context = TestContext();
  const Tensor a = Tensor::FromVector<double>({1, 2, 3, 4, 5, 6}, {2, 3}, context);
  const Tensor b = Tensor::FromVector<double>({1, 0, 2, 0, 1, 1}, {2, 3}, context);
  const Tensor out = Tensor::Full({2, 2}, DType::kF64, 9, context);
  const Tensor got = ops::MatMul(a, b, {.b_trans = true, .out = out});
  EXPECT_EQ(got.raw(), out.raw());
  EXPECT_EQ(out.ToVector<double>(), (Values{7, 5, 16, 11}));
  const auto into = [&](const Tensor& wrong) {
    return [=] { ops::MatMul(a, b, {.b_trans = true, .out = wrong}); };
  };
  EXPECT_THAT(into(Tensor::Zeros({2, 3}, DType::kF64, context)),
              testing::Says(AllOf(HasSubstr("out is f64 [2, 3]"), HasSubstr("f64 [2, 2]"))));
  EXPECT_THAT(into(Tensor::Zeros({2, 2}, DType::kF32, context)),
              testing::Says(HasSubstr("out is f32 [2, 2]")));
  EXPECT_THAT(into(out.Transpose(0, 1)), testing::Says(HasSubstr("contiguous")));
}

}  // namespace recurrent_test
}  // namespace apogee
