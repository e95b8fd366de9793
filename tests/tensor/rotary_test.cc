// SPDX-License-Identifier: Apache-2.0

// Rotary embedding against long double, and its inverse.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace rotary_test {

constexpr int64_t kBatch = 2, kTokens = 9, kHeads = 3;
constexpr int64_t kJumpAt = 5, kJump = 7;

// dims = 0: all elements of a head rotate.
void CheckStridedOperands(int64_t head_dim, int64_t dims = 0, bool own_frequencies = false) {
  SCOPED_TRACE(::testing::Message() << dims << " of " << head_dim << " elements");
  const int64_t half = (dims == 0 ? head_dim : dims) / 2;
  const int64_t numel = kBatch * kTokens * kHeads * head_dim;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double plain = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    frequencies.push_back(i % 3 == 0 ? plain : plain / 8);
  }
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (int64_t first_position : {0, 1000, 100000}) {
      for (bool inverse : {false, true}) {
        const Buffer x = Buffer::Normal(dtype, numel, 1);
        Buffer y(dtype, numel);
        // x is [batch, tokens, heads, head_dim], y is [batch, heads, tokens, head_dim].
        context->kernels().rotary(*context,
                                  {dtype,
                                   x.data(),
                                   y.data(),
                                   kBatch,
                                   kTokens,
                                   kHeads,
                                   head_dim,
                                   {kTokens * kHeads * head_dim, kHeads * head_dim, head_dim},
                                   {kTokens * kHeads * head_dim, head_dim, kTokens * head_dim},
                                   10000,
                                   first_position,
                                   inverse,
                                   kJumpAt,
                                   kJump,
                                   nullptr,
                                   dims,
                                   own_frequencies ? frequencies.data() : nullptr});
        const std::vector<double> xs = x.values();
        std::vector<double> expected(xs.size());
        double longest = 1;
        for (int64_t b = 0; b < kBatch; ++b) {
          for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t h = 0; h < kHeads; ++h) {
              const double* from = xs.data() + ((b * kTokens + t) * kHeads + h) * head_dim;
              double* to = expected.data() + ((b * kHeads + h) * kTokens + t) * head_dim;
              std::copy(from + 2 * half, from + head_dim, to + 2 * half);
              for (int64_t i = 0; i < half; ++i) {
                const long double frequency =
                    own_frequencies
                        ? frequencies[static_cast<size_t>(i)]
                        : std::pow(10000.0L, -1.0L * static_cast<long double>(i) / half);
                const int64_t jump = t >= kJumpAt ? kJump : 0;
                const long double angle =
                    static_cast<long double>(first_position + t + jump) * frequency;
                const double cosine = static_cast<double>(std::cos(angle));
                const double sine =
                    static_cast<double>(inverse ? -std::sin(angle) : std::sin(angle));
                to[i] = from[i] * cosine - from[i + half] * sine;
                longest = std::max(longest, std::hypot(from[i], from[i + half]));
                to[i + half] = from[i + half] * cosine + from[i] * sine;
              }
            }
          }
        }
        // In f64 the angle itself is rounded, in proportion to its size, which moves the pair's
        // end.
        const double slack =
            dtype == DType::kF64 ? 4e-16 * static_cast<double>(first_position) * longest : 0;
        ExpectClose(y.values(), expected, Tolerance(dtype, ErrorKind::kElementwise) + slack);
      }
    }
  }
}

TEST(Rotary, MatchesReferenceForStridedOperands) {
  for (int64_t head_dim : {2, 34, 64, 300}) CheckStridedOperands(head_dim);
}

TEST(Rotary, TheRestOfAHeadIsCopied) {
  CheckStridedOperands(64, 16);
  CheckStridedOperands(80, 32);
  CheckStridedOperands(20, 6);
  CheckStridedOperands(7, 2);
  CheckStridedOperands(320, 300);
}

TEST(Rotary, FrequenciesOfTheCaller) {
  CheckStridedOperands(64, 0, /*own_frequencies=*/true);
  CheckStridedOperands(300, 0, /*own_frequencies=*/true);
  CheckStridedOperands(21, 14, /*own_frequencies=*/true);
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

}  // namespace rotary_test
}  // namespace apogee
