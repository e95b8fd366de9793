// Rotary embedding against double, and its inverse.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace {

constexpr int64_t kBatch = 2, kTokens = 9, kHeads = 3, kHeadDim = 34, kHalf = kHeadDim / 2;
constexpr int64_t kNumel = kBatch * kTokens * kHeads * kHeadDim;

TEST(Rotary, MatchesReferenceForStridedOperands) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (int64_t first_position : {0, 1000, 100000}) {
      for (bool inverse : {false, true}) {
        const Buffer x = Buffer::Normal(dtype, kNumel, 1);
        Buffer y(dtype, kNumel);
        // x is [batch, tokens, heads, head_dim], y is [batch, heads, tokens, head_dim].
        context->kernels().rotary(*context,
                                  {dtype,
                                   x.data(),
                                   y.data(),
                                   kBatch,
                                   kTokens,
                                   kHeads,
                                   kHeadDim,
                                   {kTokens * kHeads * kHeadDim, kHeads * kHeadDim, kHeadDim},
                                   {kTokens * kHeads * kHeadDim, kHeadDim, kTokens * kHeadDim},
                                   10000,
                                   first_position,
                                   inverse});
        const std::vector<double> xs = x.values();
        std::vector<double> expected(xs.size());
        for (int64_t b = 0; b < kBatch; ++b) {
          for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t h = 0; h < kHeads; ++h) {
              const double* from = xs.data() + ((b * kTokens + t) * kHeads + h) * kHeadDim;
              double* to = expected.data() + ((b * kHeads + h) * kTokens + t) * kHeadDim;
              for (int64_t i = 0; i < kHalf; ++i) {
                const double frequency =
                    std::pow(10000.0, -2.0 * static_cast<double>(i) / kHeadDim);
                double angle = static_cast<double>(first_position + t) * frequency;
                if (inverse) angle = -angle;
                to[i] = from[i] * std::cos(angle) - from[i + kHalf] * std::sin(angle);
                to[i + kHalf] = from[i + kHalf] * std::cos(angle) + from[i] * std::sin(angle);
              }
            }
          }
        }
        // In f64 the angle itself is rounded, in proportion to its size.
        const double slack = dtype == DType::kF64 ? 4e-16 * static_cast<double>(first_position) : 0;
        ExpectClose(y.values(), expected, Tolerance(dtype, ErrorKind::kElementwise) + slack);
      }
    }
  }
}

TEST(Rotary, NaNStaysInItsPair) {
  const ContextPtr context = TestContext();
  const Buffer x(DType::kF32, {1, NAN, 2, 3});
  Buffer y(DType::kF32, 4);
  context->kernels().rotary(
      *context,
      {DType::kF32, x.data(), y.data(), 1, 1, 1, 4, {4, 4, 4}, {4, 4, 4}, 10000, 0, false});
  ExpectClose(y.values(), {1, NAN, 2, NAN}, 0);
}

TEST(Rotary, SameBitsForAnyNumberOfThreads) {
  const int64_t tokens = 301, heads = 6, dim = 64;
  for (DType dtype : kFloats) {
    const Buffer x = Buffer::Normal(dtype, tokens * heads * dim, 1);
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer y(dtype, tokens * heads * dim);
      context.kernels().rotary(context, {dtype,
                                         x.data(),
                                         y.data(),
                                         1,
                                         tokens,
                                         heads,
                                         dim,
                                         {tokens * heads * dim, heads * dim, dim},
                                         {tokens * heads * dim, heads * dim, dim},
                                         10000,
                                         5,
                                         false});
      return y.bytes();
    });
  }
}

}  // namespace
}  // namespace apogee
