// Fused attention against the definition in f64: masks, grouped heads, packed layouts, sizes,
// dtypes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/kernel_table.h"
#include "gtest/gtest.h"

namespace apogee {
namespace {

struct Problem {
  int64_t batch = 2, heads = 2, kv_heads = 2, q_tokens = 8, kv_tokens = 8, head_dim = 8;
  bool causal = true;
  int threads = 1;
};

// One head of one of the operands: [tokens, head_dim] in f64.
using Matrix = std::vector<std::vector<double>>;

struct Operands {
  Matrix q, k, v, out, dout, dq, dk, dv;
};

// Adds the gradients of one query head to dk and dv.
void Reference(const Problem& p, double scale, Operands& x, std::vector<double>& lse) {
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto add = [](double factor, const std::vector<double>& a, std::vector<double>& b) {
    for (size_t i = 0; i < a.size(); ++i) b[i] += factor * a[i];
  };
  for (int64_t i = 0; i < p.q_tokens; ++i) {
    const int64_t seen =
        p.causal ? std::max<int64_t>(0, i + p.kv_tokens - p.q_tokens + 1) : p.kv_tokens;
    std::vector<double> scores, weights;
    double max = -INFINITY, total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      scores.push_back(scale * dot(x.q[i], x.k[j]));
      max = std::max(max, scores.back());
    }
    for (double score : scores) total += std::exp(score - max);
    lse.push_back(seen == 0 ? -INFINITY : max + std::log(total));
    for (int64_t j = 0; j < seen; ++j) {
      weights.push_back(std::exp(scores[j] - max) / total);
      add(weights[j], x.v[j], x.out[i]);
    }
    const double d = dot(x.dout[i], x.out[i]);
    for (int64_t j = 0; j < seen; ++j) {
      const double dscore = weights[j] * (dot(x.dout[i], x.v[j]) - d) * scale;
      add(weights[j], x.dout[i], x.dv[j]);
      add(dscore, x.k[j], x.dq[i]);
      add(dscore, x.q[i], x.dk[j]);
    }
  }
}

template <typename T>
AttentionOperand Strided(std::vector<T>& data, int64_t tokens, int64_t heads, int64_t head_dim,
                         int64_t first_head) {
  return {data.data() + first_head * head_dim, tokens * heads * head_dim, heads * head_dim,
          head_dim};
}

// Compares the largest error of each result, relative to its root mean square, with the tolerance.
// q, k and v (and their gradients) share a packed buffer [batch, tokens, heads + 2 kv_heads,
// head_dim], as in GPT-2, where the numbers of tokens allow.
template <typename T>
void Check(const Problem& p, double tolerance) {
  SCOPED_TRACE(testing::Message() << "heads " << p.heads << "/" << p.kv_heads << " tokens "
                                  << p.q_tokens << "/" << p.kv_tokens << " head_dim " << p.head_dim
                                  << " causal " << p.causal << " threads " << p.threads);
  using C = ComputeType<T>;
  const bool packed = p.q_tokens == p.kv_tokens;
  const int64_t all_heads = p.heads + 2 * p.kv_heads;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const auto make = [&](int64_t tokens, int64_t heads) {
    std::vector<T> data(static_cast<size_t>(p.batch * tokens * heads * p.head_dim));
    for (T& x : data) x = static_cast<T>(static_cast<C>(normal(random)));
    return data;
  };
  std::vector<T> q = make(p.q_tokens, packed ? all_heads : p.heads);
  std::vector<T> k = make(p.kv_tokens, p.kv_heads), v = make(p.kv_tokens, p.kv_heads);
  std::vector<T> dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<T> dout = make(p.q_tokens, p.heads), out(dout.size());
  std::vector<C> lse(static_cast<size_t>(p.batch * p.heads * p.q_tokens));
  const auto view = [&](std::vector<T>& qkv, std::vector<T>& own, int64_t first_head) {
    return packed ? Strided(qkv, p.q_tokens, all_heads, p.head_dim, first_head)
                  : Strided(own, p.kv_tokens, p.kv_heads, p.head_dim, 0);
  };
  AttentionBackwardArgs args{
      .dtype = DTypeOf<T>(),
      .q = Strided(q, p.q_tokens, packed ? all_heads : p.heads, p.head_dim, 0),
      .k = view(q, k, p.heads),
      .v = view(q, v, p.heads + p.kv_heads),
      .out = Strided(out, p.q_tokens, p.heads, p.head_dim, 0),
      .dout = Strided(dout, p.q_tokens, p.heads, p.head_dim, 0),
      .dq = Strided(dq, p.q_tokens, packed ? all_heads : p.heads, p.head_dim, 0),
      .dk = view(dq, dk, p.heads),
      .dv = view(dq, dv, p.heads + p.kv_heads),
      .lse = lse.data(),
      .batch = p.batch,
      .heads = p.heads,
      .kv_heads = p.kv_heads,
      .q_tokens = p.q_tokens,
      .kv_tokens = p.kv_tokens,
      .head_dim = p.head_dim,
      .scale = 0.3,
      .causal = p.causal};
  const ContextPtr context = CpuContext({.num_threads = p.threads});
  const auto run = [&] {
    context->kernels().attention_forward(*context, {.dtype = args.dtype,
                                                    .q = args.q,
                                                    .k = args.k,
                                                    .v = args.v,
                                                    .out = args.out,
                                                    .lse = lse.data(),
                                                    .batch = p.batch,
                                                    .heads = p.heads,
                                                    .kv_heads = p.kv_heads,
                                                    .q_tokens = p.q_tokens,
                                                    .kv_tokens = p.kv_tokens,
                                                    .head_dim = p.head_dim,
                                                    .scale = args.scale,
                                                    .causal = p.causal});
    context->kernels().attention_backward(*context, args);
  };
  run();
  const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  };
  const std::vector<T> first_out = out, first_dq = dq, first_dk = dk, first_dv = dv;
  run();
  EXPECT_TRUE(same(out, first_out) && same(dq, first_dq) && same(dk, first_dk) &&
              same(dv, first_dv));
  EXPECT_EQ(context->ledger().live_total_bytes(), 0);

  const auto read = [&](const AttentionOperand& x, int64_t batch, int64_t head, int64_t tokens) {
    Matrix matrix;
    for (int64_t i = 0; i < tokens; ++i) {
      const T* row = static_cast<const T*>(x.data) + batch * x.batch_stride + i * x.token_stride +
                     head * x.head_stride;
      matrix.emplace_back();
      for (int64_t d = 0; d < p.head_dim; ++d) matrix.back().push_back(static_cast<C>(row[d]));
    }
    return matrix;
  };
  const auto zeros = [&](int64_t tokens) {
    return Matrix(static_cast<size_t>(tokens),
                  std::vector<double>(static_cast<size_t>(p.head_dim)));
  };
  const auto compare = [&](const char* name, const Matrix& expected, const Matrix& actual) {
    double square = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      for (size_t d = 0; d < expected[i].size(); ++d) {
        ASSERT_TRUE(std::isfinite(actual[i][d])) << name << " " << i << "," << d;
        square += expected[i][d] * expected[i][d];
        error = std::max(error, std::abs(actual[i][d] - expected[i][d]));
      }
    }
    const double rms =
        std::sqrt(square / static_cast<double>(expected.size() * expected[0].size()));
    EXPECT_LE(error, tolerance * std::max(rms, 0.1)) << name;
  };
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    for (int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
      Operands x;
      x.k = read(args.k, batch, kv_head, p.kv_tokens);
      x.v = read(args.v, batch, kv_head, p.kv_tokens);
      x.dk = zeros(p.kv_tokens);
      x.dv = zeros(p.kv_tokens);
      const int64_t group = p.heads / p.kv_heads;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        x.q = read(args.q, batch, head, p.q_tokens);
        x.dout = read(args.dout, batch, head, p.q_tokens);
        x.out = zeros(p.q_tokens);
        x.dq = zeros(p.q_tokens);
        std::vector<double> expected_lse;
        Reference(p, args.scale, x, expected_lse);
        compare("out", x.out, read(args.out, batch, head, p.q_tokens));
        compare("dq", x.dq, read(args.dq, batch, head, p.q_tokens));
        for (int64_t i = 0; i < p.q_tokens; ++i) {
          const double actual = lse[static_cast<size_t>((batch * p.heads + head) * p.q_tokens + i)];
          const double expected = expected_lse[static_cast<size_t>(i)];
          if (std::isinf(expected)) {
            EXPECT_EQ(actual, expected);
          } else {
            EXPECT_NEAR(actual, expected, sizeof(C) == 8 ? 1e-12 : 1e-5);
          }
        }
      }
      compare("dk", x.dk, read(args.dk, batch, kv_head, p.kv_tokens));
      compare("dv", x.dv, read(args.dv, batch, kv_head, p.kv_tokens));
    }
  }
}

const Problem kProblems[] = {
    {.q_tokens = 1, .kv_tokens = 1},
    {.q_tokens = 64, .kv_tokens = 64, .head_dim = 64, .threads = 2},
    {.heads = 3, .kv_heads = 3, .q_tokens = 67, .kv_tokens = 67, .head_dim = 20, .threads = 2},
    {.q_tokens = 67, .kv_tokens = 67, .head_dim = 5, .causal = false},
    {.heads = 6, .kv_heads = 2, .q_tokens = 40, .kv_tokens = 40, .head_dim = 16, .threads = 2},
    {.heads = 4, .kv_heads = 1, .q_tokens = 9, .kv_tokens = 150, .head_dim = 24},
    {.q_tokens = 1, .kv_tokens = 131, .head_dim = 32},
    {.q_tokens = 70, .kv_tokens = 131, .head_dim = 48, .causal = false},
    {.q_tokens = 131, .kv_tokens = 3, .head_dim = 8, .causal = false, .threads = 4},
    {.batch = 1, .heads = 1, .kv_heads = 1, .q_tokens = 200, .kv_tokens = 200, .head_dim = 128},
    {.batch = 1, .heads = 1, .kv_heads = 1, .q_tokens = 33, .kv_tokens = 33, .head_dim = 256},
};

TEST(AttentionTest, F64IsExact) {
  for (const Problem& problem : kProblems) Check<double>(problem, 1e-12);
}
TEST(AttentionTest, F32) {
  for (const Problem& problem : kProblems) Check<float>(problem, 5e-5);
}
TEST(AttentionTest, BF16) {
  for (const Problem& problem : kProblems) Check<BFloat16>(problem, 0.1);
}
TEST(AttentionTest, F16) {
  for (const Problem& problem : kProblems) Check<Float16>(problem, 0.01);
}
// The first queries see no key: zero output and gradients, a log-sum-exp of -inf.
TEST(AttentionTest, QueriesThatSeeNoKey) {
  Check<double>({.q_tokens = 40, .kv_tokens = 21}, 1e-12);
  Check<float>({.q_tokens = 140, .kv_tokens = 21}, 2e-5);
}

}  // namespace
}  // namespace apogee
