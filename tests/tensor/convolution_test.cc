// SPDX-License-Identifier: Apache-2.0

// Convolutions and pools against plain loops in double precision.
#include "apogee/tensor/ops/convolution.h"

#include <limits>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace convolution_test {

using Values = std::vector<double>;

// Calls fn(index in x, index in weight, index in y) for every product of a convolution.
template <typename Fn>
void ForProducts(const ConvSizes& s, const Fn& fn) {
  const Window& w = s.window;
  const int64_t in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t o = 0; o < s.out_channels; ++o) {
      for (int64_t c = 0; c < in; ++c) {
        for (int64_t oh = 0; oh < w.out[0]; ++oh) {
          for (int64_t ow = 0; ow < w.out[1]; ++ow) {
            for (int64_t i = 0; i < w.kernel[0]; ++i) {
              for (int64_t j = 0; j < w.kernel[1]; ++j) {
                const int64_t h = oh * w.stride[0] - w.padding[0] + i * w.dilation[0];
                const int64_t v = ow * w.stride[1] - w.padding[1] + j * w.dilation[1];
                if (h < 0 || h >= w.in[0] || v < 0 || v >= w.in[1]) continue;
                const int64_t channel = n * s.in_channels + o / out * in + c;
                fn((channel * w.in[0] + h) * w.in[1] + v,
                   ((o * in + c) * w.kernel[0] + i) * w.kernel[1] + j,
                   ((n * s.out_channels + o) * w.out[0] + oh) * w.out[1] + ow);
              }
            }
          }
        }
      }
    }
  }
}

double& At(Values& values, int64_t i) { return values[static_cast<size_t>(i)]; }
double At(const Values& values, int64_t i) { return values[static_cast<size_t>(i)]; }

// y, dx and dweight without a bias.
struct Results {
  Values y, dx, dweight;
};

Results Reference(const ConvSizes& s, const Values& x, const Values& weight, const Values& dy) {
  Results r{Values(dy.size()), Values(x.size()), Values(weight.size())};
  ForProducts(s, [&](int64_t a, int64_t b, int64_t c) {
    At(r.y, c) += At(x, a) * At(weight, b);
    At(r.dx, a) += At(dy, c) * At(weight, b);
    At(r.dweight, b) += At(dy, c) * At(x, a);
  });
  return r;
}

// Adds bias[channel] to the images of [.., channels, size].
Values WithBias(Values values, const Values& bias, int64_t size) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += bias[i / static_cast<size_t>(size) % bias.size()];
  }
  return values;
}

double Largest(const Values& values) {
  double largest = 1;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

Tensor Random(DType dtype, const Shape& shape, unsigned seed, const ContextPtr& context) {
  const Values values = Buffer::Normal(dtype, shape.numel(), seed).values();
  return Tensor::FromVector(values, shape, context, dtype);
}

struct Sizes {
  Shape x, weight;
  ops::WindowOptions options;
};

// Odd sizes; layers that oneDNN takes in blocks of channels; several samples of more than 32 MiB
// of columns in f64; one group per channel; windows with gaps and steps.
std::vector<Sizes> AllSizes() {
  return {{{2, 3, 7, 5}, {4, 3, 3, 3}, {.padding = {1, 1}}},
          {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
          {{0, 2, 5, 5}, {3, 2, 3, 3}, {}},
          {{3, 5, 4, 6}, {7, 5, 1, 1}, {}},
          {{2, 6, 9, 8},
           {9, 2, 3, 2},
           {.stride = {2, 1}, .padding = {1, 0}, .dilation = {2, 3}, .groups = 3}},
          {{3, 32, 11, 10}, {32, 32, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
          {{2, 48, 9, 9}, {48, 1, 3, 3}, {.padding = {1, 1}, .groups = 48}},
          {{1, 3, 23, 21}, {16, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
          {{3, 40, 1, 17}, {24, 40, 1, 5}, {.padding = {0, 2}}},
          {{5, 64, 40, 40}, {3, 64, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}}};
}

TEST(Convolution, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const DType dtype : kFloats) {
    const DType wide = StatisticDType(dtype);
    for (const Sizes& each : AllSizes()) {
      SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " " << each.x.ToString() << " "
                                        << each.weight.ToString());
      const Tensor x = Random(dtype, each.x, 1, context);
      const Tensor weight = Random(dtype, each.weight, 2, context);
      const Tensor bias = Random(dtype, {weight.size(0)}, 3, context);
      const ConvSizes s = ops::SizesOfConv("conv2d", x, weight, bias, each.options);
      const Shape y_shape{s.batch, s.out_channels, s.window.out[0], s.window.out[1]};
      const Tensor dy = Random(dtype, y_shape, 4, context);
      const Tensor x_bias = Random(dtype, {s.in_channels}, 5, context);
      const Results want =
          Reference(s, x.ToVector<double>(), weight.ToVector<double>(), dy.ToVector<double>());
      const auto expect = [&](const Tensor& got, const Values& values, DType result) {
        EXPECT_EQ(got.dtype(), result);
        const double tolerance = Tolerance(result, ErrorKind::kGemm);
        ExpectClose(got.ToVector<double>(), values, tolerance, Largest(values));
      };
      const Values y_with_bias = WithBias(want.y, bias.ToVector<double>(), s.window.out_size());
      const Values dx_with_bias = WithBias(want.dx, x_bias.ToVector<double>(), s.window.in_size());
      for (const DType result : {dtype, wide}) {
        expect(ops::ConvForward(s, x, weight, {}, result), want.y, result);
        expect(ops::ConvForward(s, x, weight, bias, result), y_with_bias, result);
        expect(ops::ConvBackwardInput(s, dy, weight, {}, result), want.dx, result);
        expect(ops::ConvBackwardInput(s, dy, weight, x_bias, result), dx_with_bias, result);
        expect(ops::ConvBackwardWeight(s, x, dy, each.weight, result), want.dweight, result);
        if (result == wide) continue;
        Values sums(bias.ToVector<double>().size());
        const Values terms = dy.ToVector<double>();
        for (size_t i = 0; i < terms.size(); ++i) {
          sums[i / static_cast<size_t>(s.window.out_size()) % sums.size()] += terms[i];
        }
        expect(ops::SumOfChannels(dy, wide), sums, wide);
      }
    }
  }
}

// The same bits in every run with a number of threads.
TEST(Convolution, RunsAgree) {
  for (const DType dtype : kFloats) {
    for (const int threads : {1, 2, 3}) {
      const ContextPtr context = TestContext({.num_threads = threads});
      const Tensor x = Random(dtype, {3, 32, 19, 13}, 1, context);
      const Tensor weight = Random(dtype, {48, 32, 3, 3}, 2, context);
      const ConvSizes s = ops::SizesOfConv("conv2d", x, weight, {}, {.padding = {1, 1}});
      const Tensor dy = Random(dtype, {3, 48, 19, 13}, 3, context);
      const auto run = [&] {
        return std::vector{
            ops::ConvForward(s, x, weight, {}, dtype).ToVector<double>(),
            ops::ConvBackwardInput(s, dy, weight, {}, dtype).ToVector<double>(),
            ops::ConvBackwardWeight(s, x, dy, weight.shape(), dtype).ToVector<double>()};
      };
      const auto want = run();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(run(), want) << DTypeName(dtype) << " " << threads;
    }
  }
}

struct PoolSizes {
  Shape x;
  int64_t kernel[2];
  ops::WindowOptions options;
};

const PoolSizes kPools[] = {
    {{2, 3, 7, 5}, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {{1, 2, 6, 9}, {2, 4}, {.stride = {2, 3}, .padding = {1, 2}}},
    {{3, 1, 5, 5}, {1, 1}, {}},
    {{0, 2, 5, 5}, {2, 2}, {}},
    {{2, 33, 17, 19}, {3, 2}, {.stride = {1, 1}}},
};

// Calls fn(stop in y, places of its window in x).
template <typename Fn>
void ForStops(const Window& w, int64_t planes, const Fn& fn) {
  for (int64_t y = 0; y < planes * w.out_size(); ++y) {
    const int64_t plane = y / w.out_size(), oh = y % w.out_size() / w.out[1], ow = y % w.out[1];
    std::vector<int64_t> places;
    for (int64_t i = 0; i < w.kernel[0]; ++i) {
      for (int64_t j = 0; j < w.kernel[1]; ++j) {
        const int64_t h = oh * w.stride[0] - w.padding[0] + i;
        const int64_t v = ow * w.stride[1] - w.padding[1] + j;
        if (h < 0 || h >= w.in[0] || v < 0 || v >= w.in[1]) continue;
        places.push_back((plane * w.in[0] + h) * w.in[1] + v);
      }
    }
    fn(y, places);
  }
}

TEST(Pool, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const DType dtype : kFloats) {
    for (const PoolSizes& each : kPools) {
      SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " " << each.x.ToString());
      const Tensor x = Random(dtype, each.x, 1, context);
      const Window w = ops::WindowOfPool("pool", x, each.kernel, each.options);
      const int64_t planes = x.size(0) * x.size(1);
      const Tensor dy = Random(dtype, {x.size(0), x.size(1), w.out[0], w.out[1]}, 2, context);
      const Values in = x.ToVector<double>(), grad = dy.ToVector<double>();
      Values largest(grad.size()), largest_dx(in.size());
      ForStops(w, planes, [&](int64_t y, const std::vector<int64_t>& places) {
        int64_t best = places[0];
        for (const int64_t place : places) best = At(in, place) > At(in, best) ? place : best;
        At(largest, y) = At(in, best);
        At(largest_dx, best) += At(grad, y);
      });
      const double tolerance = Tolerance(dtype, ErrorKind::kReduction);
      const ops::MaxPoolResult result = ops::MaxPoolForward(w, x);
      EXPECT_EQ(result.y.ToVector<double>(), largest);
      ExpectClose(ops::MaxPoolBackward(w, result.index, dy, each.x).ToVector<double>(), largest_dx,
                  tolerance);
      for (const bool count : {true, false}) {
        Values mean(grad.size()), mean_dx(in.size());
        ForStops(w, planes, [&](int64_t y, const std::vector<int64_t>& places) {
          const double divisor =
              count ? static_cast<double>(w.kernel_size()) : static_cast<double>(places.size());
          for (const int64_t place : places) {
            At(mean, y) += At(in, place) / divisor;
            At(mean_dx, place) += At(grad, y) / divisor;
          }
        });
        ExpectClose(ops::AveragePoolForward(w, x, count).ToVector<double>(), mean, tolerance);
        ExpectClose(ops::AveragePoolBackward(w, dy, count, each.x).ToVector<double>(), mean_dx,
                    tolerance);
      }
    }
  }
}

TEST(Pool, TakesTheFirstOfEqualElementsAndTheFirstNaN) {
  const ContextPtr context = TestContext();
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFloats) {
    const auto index = [&](const Values& values) {
      const Tensor x = Tensor::FromVector(values, {1, 1, 2, 3}, context, dtype);
      const Window w = ops::WindowOfPool("pool", x, {2, 3}, {});
      const ops::MaxPoolResult result = ops::MaxPoolForward(w, x);
      const double y = result.y.ToVector<double>()[0];
      const int64_t at = result.index.ToVector<int64_t>()[0];
      EXPECT_TRUE(y == At(values, at) || (std::isnan(y) && std::isnan(At(values, at))));
      return at;
    };
    EXPECT_EQ(index({1, 2, 0, 2, 1, 2}), 1);
    EXPECT_EQ(index({-inf, -inf, -inf, -inf, -inf, -inf}), 0);
    EXPECT_EQ(index({1, inf, NAN, 2, NAN, inf}), 2);
    EXPECT_EQ(index({NAN, inf, NAN, 2, 3, 4}), 0);
  }
}

}  // namespace convolution_test
}  // namespace apogee
