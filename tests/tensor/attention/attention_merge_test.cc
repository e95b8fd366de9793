// SPDX-License-Identifier: Apache-2.0

// attention_merge against its formula in double: packed and strided rows, sets of no keys.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace attention_merge_test {

struct Case {
  int64_t batch, tokens, heads, head_dim;
  int64_t gap;         // elements behind each token of `sum`
  int64_t more_lines;  // tokens of sum_lse's rows that are not merged
};
constexpr Case kCases[] = {{0, 3, 2, 8, 0, 0},  {1, 1, 1, 1, 0, 0},  {2, 5, 3, 64, 0, 0},
                           {2, 5, 3, 64, 8, 2}, {2, 7, 2, 33, 3, 1}, {1, 40, 2, 132, 4, 3}};

TEST(AttentionMerge, MatchesTheFormula) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (const Case& test : kCases) {
      const auto [batch, tokens, heads, head_dim, gap, more] = test;
      SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " head_dim " << head_dim);
      const int64_t token_stride = heads * head_dim + gap, lse_stride = tokens + more;
      Buffer sum = Buffer::Normal(dtype, batch * tokens * token_stride, 1);
      const Buffer part = Buffer::Normal(dtype, batch * tokens * heads * head_dim, 2);
      std::vector<double> lse = Buffer::Normal(dtype, batch * heads * lse_stride, 3, 20).values();
      std::vector<double> part_lse = Buffer::Normal(dtype, batch * heads * tokens, 4, 20).values();
      // No keys in either set, in the part, in the sum.
      for (size_t i = 0; i < part_lse.size(); i += 5) part_lse[i] = -INFINITY;
      for (size_t i = 0; i < lse.size(); i += 7) lse[i] = -INFINITY;
      std::vector<double> expected = sum.values(), expected_lse = lse;
      const std::vector<double> parts = part.values();
      for (int64_t row = 0; row < batch * tokens * heads; ++row) {
        const int64_t h = row % heads, t = row / heads % tokens, b = row / heads / tokens;
        double& a = expected_lse[static_cast<size_t>((b * heads + h) * lse_stride + t)];
        const double p = part_lse[static_cast<size_t>((b * heads + h) * tokens + t)];
        if (p == -INFINITY) continue;
        const double l = std::max(a, p) + std::log1p(std::exp(-std::abs(a - p)));
        for (int64_t d = 0; d < head_dim; ++d) {
          double& to =
              expected[static_cast<size_t>((b * tokens + t) * token_stride + h * head_dim + d)];
          to = std::exp(a - l) * to +
               std::exp(p - l) * parts[static_cast<size_t>(row * head_dim + d)];
        }
        a = l;
      }
      Buffer sum_lse(dtype, lse);
      const Buffer from_lse(dtype, part_lse);
      context->kernels().attention_merge(
          *context, {.dtype = dtype,
                     .sum = {sum.data(), tokens * token_stride, token_stride, head_dim},
                     .part = {const_cast<void*>(part.data()), tokens * heads * head_dim,
                              heads * head_dim, head_dim},
                     .sum_lse = sum_lse.data(),
                     .part_lse = from_lse.data(),
                     .sum_lse_batch = heads * lse_stride,
                     .sum_lse_head = lse_stride,
                     .batch = batch,
                     .tokens = tokens,
                     .heads = heads,
                     .head_dim = head_dim});
      // Weights are exponentials of differences of numbers up to some 60.
      const double tolerance = 10 * Tolerance(dtype, ErrorKind::kElementwise);
      ExpectClose(sum.values(), expected, tolerance);
      ExpectClose(sum_lse.values(), expected_lse, Tolerance(dtype, ErrorKind::kReduction));
    }
  }
}

}  // namespace attention_merge_test
}  // namespace apogee
