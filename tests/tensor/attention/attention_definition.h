// SPDX-License-Identifier: Apache-2.0

// Fused attention, forward and backward, against the definition in f64.
//
//   ExpectDefinition(DType::kF32, {.q_tokens = 70, .kv_tokens = 70, .window = 9}, 5e-5);
#ifndef APOGEE_TESTS_TENSOR_ATTENTION_DEFINITION_H_
#define APOGEE_TESTS_TENSOR_ATTENTION_DEFINITION_H_

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "apogee/tests/support/buffer.h"

namespace apogee {
namespace attention_test {

// kKeys: u8 [batch, 1, 1, kv_tokens]. kBias: of q's dtype, [1, heads, q_tokens, kv_tokens].
enum class Mask { kNone, kKeys, kBias };
// kPacked: documents of 1, 2, 3, .. tokens, of which the second sample begins with another one.
// kTwo: two documents. kAnywhere: first keys in no order, also before the first key and behind the
// last.
enum class Documents { kNone, kPacked, kTwo, kAnywhere };

struct Problem {
  int64_t batch = 2, heads = 2, kv_heads = 2, q_tokens = 8, kv_tokens = 8, head_dim = 8;
  bool causal = true;
  int threads = 1;
  bool wide = false;
  int64_t window = 0;
  Mask mask = Mask::kNone;
  Documents documents = Documents::kNone;
  int64_t second_document = 0;  // its first key, for kTwo
  double soft_cap = 0;
  bool forward_only = false;  // gradients are not compared
};

// [batch, q_tokens]: the first key that each query sees.
inline std::vector<int64_t> FirstKeysOf(const Problem& p) {
  std::vector<int64_t> first;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t ahead = p.kv_tokens - p.q_tokens;
    for (int64_t i = 0; i < p.q_tokens; ++i) {
      int64_t begin = 0;
      for (int64_t length = 1 + 5 * b; begin + length <= i + ahead; ++length) begin += length;
      if (p.documents == Documents::kTwo) {
        begin = i + ahead < p.second_document ? 0 : p.second_document;
      }
      const bool anywhere = p.documents == Documents::kAnywhere;
      first.push_back(anywhere ? (i * 37 + b * 11) % (p.kv_tokens + 6) - 3 : begin);
    }
  }
  return first;
}

// One head of one of the operands: [tokens, head_dim] in f64.
using Matrix = std::vector<std::vector<double>>;

struct Operands {
  Matrix q, k, v, out, dout, dq, dk, dv;
  // [q_tokens, kv_tokens]: the addend of the scaled scores, and its gradient.
  Matrix mask, dmask;
  const int64_t* first_keys = nullptr;
};

// Adds the gradients of one query head to dk and dv.
inline void Reference(const Problem& p, double scale, Operands& x, std::vector<double>& lse) {
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
    int64_t first = p.window == 0 ? 0 : i + p.kv_tokens - p.q_tokens - p.window + 1;
    if (x.first_keys != nullptr) first = std::max(first, x.first_keys[i]);
    std::vector<double> scores, weights, slopes;
    double max = -INFINITY, total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double score = scale * dot(x.q[i], x.k[j]), slope = 1;
      if (p.soft_cap != 0) {
        slope = 1 / std::pow(std::cosh(score / p.soft_cap), 2);
        score = p.soft_cap * std::tanh(score / p.soft_cap);
      }
      slopes.push_back(slope);
      scores.push_back(j < first ? -INFINITY : score + x.mask[i][j]);
      max = std::max(max, scores.back());
    }
    if (max == -INFINITY) {
      lse.push_back(-INFINITY);
      continue;
    }
    for (double score : scores) total += std::exp(score - max);
    lse.push_back(max + std::log(total));
    for (int64_t j = 0; j < seen; ++j) {
      weights.push_back(std::exp(scores[j] - max) / total);
      add(weights[j], x.v[j], x.out[i]);
    }
    const double d = dot(x.dout[i], x.out[i]);
    for (int64_t j = 0; j < seen; ++j) {
      x.dmask[i][j] = weights[j] * (dot(x.dout[i], x.v[j]) - d);
      const double dscore = x.dmask[i][j] * slopes[j] * scale;
      add(weights[j], x.dout[i], x.dv[j]);
      add(dscore, x.k[j], x.dq[i]);
      add(dscore, x.q[i], x.dk[j]);
    }
  }
}

inline AttentionOperand Strided(Buffer& data, int64_t tokens, int64_t heads, int64_t head_dim,
                                int64_t first_head) {
  return {static_cast<char*>(data.data()) + first_head * head_dim * DTypeSize(data.dtype()),
          tokens * heads * head_dim, heads * head_dim, head_dim};
}

// One head of an operand that is a view of `data`.
inline Matrix Read(const Buffer& data, const AttentionOperand& view, int64_t batch, int64_t head,
                   int64_t tokens, int64_t head_dim) {
  const std::vector<double> values = data.values();
  const auto first = (static_cast<const char*>(view.data) - static_cast<const char*>(data.data())) /
                     DTypeSize(data.dtype());
  Matrix matrix;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto row = values.begin() + first + batch * view.batch_stride + i * view.token_stride +
                     head * view.head_stride;
    matrix.emplace_back(row, row + head_dim);
  }
  return matrix;
}

inline Matrix Zeros(int64_t tokens, int64_t head_dim) {
  return Matrix(static_cast<size_t>(tokens), std::vector<double>(static_cast<size_t>(head_dim)));
}

// Compares the largest error, relative to the root mean square, with the tolerance.
inline void Compare(const char* name, const Matrix& expected, const Matrix& actual,
                    double tolerance) {
  double square = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t d = 0; d < expected[i].size(); ++d) {
      ASSERT_TRUE(std::isfinite(actual[i][d])) << name << " " << i << "," << d;
      square += expected[i][d] * expected[i][d];
      error = std::max(error, std::abs(actual[i][d] - expected[i][d]));
    }
  }
  const double rms = std::sqrt(square / static_cast<double>(expected.size() * expected[0].size()));
  EXPECT_LE(error, tolerance * std::max(rms, 0.1)) << name;
}

// Compares forward and backward with the definition. q, k and v (and their gradients) share a
// packed buffer [batch, tokens, heads + 2 kv_heads, head_dim], as in GPT-2, where the numbers of
// tokens allow.
inline void ExpectDefinition(DType dtype, const Problem& p, double tolerance) {
  SCOPED_TRACE(::testing::Message()
               << DTypeName(dtype) << " heads " << p.heads << "/" << p.kv_heads << " tokens "
               << p.q_tokens << "/" << p.kv_tokens << " head_dim " << p.head_dim << " causal "
               << p.causal << " wide " << p.wide << " threads " << p.threads << " window "
               << p.window << " mask " << static_cast<int>(p.mask) << " documents "
               << static_cast<int>(p.documents) << " soft cap " << p.soft_cap);
  const bool packed = p.q_tokens == p.kv_tokens;
  const int64_t all_heads = p.heads + 2 * p.kv_heads;
  const int64_t q_heads = packed ? all_heads : p.heads;
  const DType result = p.wide ? StatisticDType(dtype) : dtype;
  const auto size = [&](int64_t tokens, int64_t heads) {
    return p.batch * tokens * heads * p.head_dim;
  };
  const int64_t q_size = size(p.q_tokens, q_heads), kv_size = size(p.kv_tokens, p.kv_heads);
  const int64_t out_size = size(p.q_tokens, p.heads);
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const auto make = [&](int64_t n) {
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) value = normal(random);
    return Buffer(dtype, values);
  };
  Buffer q = make(q_size), k = make(kv_size), v = make(kv_size), dout = make(out_size);
  Buffer dq(result, q_size), dk(result, kv_size), dv(result, kv_size);
  // Backward takes `out` in the operands' dtype.
  Buffer out(dtype, out_size), wide_out(result, out_size);
  Buffer lse(StatisticDType(dtype), p.batch * p.heads * p.q_tokens);
  const int64_t scores = p.q_tokens * p.kv_tokens;
  std::vector<double> mask_values(
      static_cast<size_t>(p.mask == Mask::kKeys ? p.batch * p.kv_tokens : p.heads * scores));
  for (size_t i = 0; i < mask_values.size(); ++i) {
    mask_values[i] = p.mask == Mask::kKeys ? (i % 5 != 0)
                     : i % 11 == 0         ? -INFINITY
                                           : normal(random);
  }
  const Buffer mask(p.mask == Mask::kKeys ? DType::kU8 : dtype, mask_values);
  AttentionMask mask_args{.data = mask.data(), .dtype = mask.dtype()};
  if (p.mask == Mask::kKeys) {
    mask_args.strides[0] = p.kv_tokens;
  } else {
    mask_args.strides[1] = scores;
    mask_args.strides[2] = p.kv_tokens;
  }
  mask_args.strides[3] = 1;
  if (p.mask == Mask::kNone) mask_args = {};
  const std::vector<int64_t> first_keys = FirstKeysOf(p);
  // The row of another sample follows each row.
  std::vector<double> first_key_rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < 2 * p.q_tokens; ++i) {
      const int64_t of = i < p.q_tokens ? b : (b + 1) % p.batch;
      first_key_rows.push_back(
          static_cast<double>(first_keys[static_cast<size_t>(of * p.q_tokens + i % p.q_tokens)]));
    }
  }
  first_key_rows.resize(first_key_rows.size() - static_cast<size_t>(p.q_tokens));
  const Buffer first_key_data(DType::kI64, first_key_rows);
  FirstKeys first_key_args;
  if (p.documents != Documents::kNone) {
    first_key_args = {static_cast<const int64_t*>(first_key_data.data()), 2 * p.q_tokens};
  }
  Buffer dmask(dtype, std::vector<double>(static_cast<size_t>(p.batch * p.heads * scores)));
  const auto view = [&](Buffer& qkv, Buffer& own, int64_t first_head) {
    return packed ? Strided(qkv, p.q_tokens, all_heads, p.head_dim, first_head)
                  : Strided(own, p.kv_tokens, p.kv_heads, p.head_dim, 0);
  };
  AttentionBackwardArgs args{.dtype = dtype,
                             .q = Strided(q, p.q_tokens, q_heads, p.head_dim, 0),
                             .k = view(q, k, p.heads),
                             .v = view(q, v, p.heads + p.kv_heads),
                             .out = Strided(out, p.q_tokens, p.heads, p.head_dim, 0),
                             .dout = Strided(dout, p.q_tokens, p.heads, p.head_dim, 0),
                             .dq = Strided(dq, p.q_tokens, q_heads, p.head_dim, 0),
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
                             .causal = p.causal,
                             .wide = p.wide,
                             .window = p.window,
                             .mask = mask_args,
                             .first_keys = first_key_args,
                             .dmask = p.mask == Mask::kBias ? dmask.data() : nullptr,
                             .soft_cap = p.soft_cap};
  const ContextPtr context = TestContext({.num_threads = p.threads});
  const auto forward = [&](Buffer& to, bool wide) {
    context->kernels().attention_forward(*context,
                                         {.dtype = dtype,
                                          .q = args.q,
                                          .k = args.k,
                                          .v = args.v,
                                          .out = Strided(to, p.q_tokens, p.heads, p.head_dim, 0),
                                          .lse = lse.data(),
                                          .batch = p.batch,
                                          .heads = p.heads,
                                          .kv_heads = p.kv_heads,
                                          .q_tokens = p.q_tokens,
                                          .kv_tokens = p.kv_tokens,
                                          .head_dim = p.head_dim,
                                          .scale = args.scale,
                                          .causal = p.causal,
                                          .wide = wide,
                                          .window = p.window,
                                          .mask = mask_args,
                                          .first_keys = first_key_args,
                                          .soft_cap = p.soft_cap});
  };
  const auto run = [&] {
    forward(out, false);
    forward(wide_out, p.wide);
    context->kernels().attention_backward(*context, args);
    return std::vector{out.bytes(), wide_out.bytes(), lse.bytes(),  dq.bytes(),
                       dk.bytes(),  dv.bytes(),       dmask.bytes()};
  };
  const auto first = run();
  EXPECT_EQ(run(), first);
  EXPECT_EQ(context->ledger().live_total_bytes(), 0);

  const AttentionOperand wide_view = Strided(wide_out, p.q_tokens, p.heads, p.head_dim, 0);
  const std::vector<double> actual_lse = lse.values();
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    for (int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
      Operands x;
      if (p.documents != Documents::kNone)
        x.first_keys = &first_keys[static_cast<size_t>(batch * p.q_tokens)];
      x.k = Read(packed ? q : k, args.k, batch, kv_head, p.kv_tokens, p.head_dim);
      x.v = Read(packed ? q : v, args.v, batch, kv_head, p.kv_tokens, p.head_dim);
      x.dk = Zeros(p.kv_tokens, p.head_dim);
      x.dv = Zeros(p.kv_tokens, p.head_dim);
      const int64_t group = p.heads / p.kv_heads;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const auto read = [&](const Buffer& data, const AttentionOperand& of) {
          return Read(data, of, batch, head, p.q_tokens, p.head_dim);
        };
        x.q = read(q, args.q);
        x.dout = read(dout, args.dout);
        x.out = Zeros(p.q_tokens, p.head_dim);
        x.dq = Zeros(p.q_tokens, p.head_dim);
        x.mask = x.dmask = Zeros(p.q_tokens, p.kv_tokens);
        const std::vector<double> elements = mask.values();
        for (int64_t i = 0; i < p.q_tokens; ++i) {
          for (int64_t j = 0; j < p.kv_tokens; ++j) {
            const auto at =
                static_cast<size_t>(batch * mask_args.strides[0] + head * mask_args.strides[1] +
                                    i * mask_args.strides[2] + j);
            if (p.mask == Mask::kKeys && elements[at] == 0) x.mask[i][j] = -INFINITY;
            if (p.mask == Mask::kBias) x.mask[i][j] = elements[at];
          }
        }
        std::vector<double> expected_lse;
        Reference(p, args.scale, x, expected_lse);
        Compare("out", x.out, read(out, args.out), tolerance);
        Compare("wide out", x.out, read(wide_out, wide_view), tolerance);
        if (!p.forward_only) Compare("dq", x.dq, read(dq, args.dq), tolerance);
        if (p.mask == Mask::kBias && !p.forward_only) {
          const AttentionOperand of{dmask.data(), p.heads * scores, p.kv_tokens, scores};
          Compare("dmask", x.dmask, Read(dmask, of, batch, head, p.q_tokens, p.kv_tokens),
                  tolerance);
        }
        for (int64_t i = 0; i < p.q_tokens; ++i) {
          const double actual =
              actual_lse[static_cast<size_t>((batch * p.heads + head) * p.q_tokens + i)];
          const double expected = expected_lse[static_cast<size_t>(i)];
          if (std::isinf(expected)) {
            EXPECT_EQ(actual, expected);
          } else {
            EXPECT_NEAR(actual, expected, dtype == DType::kF64 ? 1e-12 : 1e-5);
          }
        }
      }
      if (p.forward_only) continue;
      Compare("dk", x.dk, Read(packed ? dq : dk, args.dk, batch, kv_head, p.kv_tokens, p.head_dim),
              tolerance);
      Compare("dv", x.dv, Read(packed ? dq : dv, args.dv, batch, kv_head, p.kv_tokens, p.head_dim),
              tolerance);
    }
  }
}

}  // namespace attention_test
}  // namespace apogee

#endif  // APOGEE_TESTS_TENSOR_ATTENTION_DEFINITION_H_
