// SPDX-License-Identifier: Apache-2.0

// AttentionCore against the definition of attention in f64.
#include "apogee/nn/attention.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <cmath>

#include "apogee/autograd/functions/shape.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace attention_test {

using ::testing::AllOf;
using testing::ExpectGradients;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using testing::RandomTensor;
using testing::Says;
using ::testing::UnorderedElementsAre;
using Values = std::vector<double>;

constexpr int64_t kBatch = 2, kTokens = 9, kHeadDim = 4;

// starts: where the document of each token begins; empty: no documents.
Values Definition(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                  const AttentionCoreOptions& options, const std::vector<int64_t>& starts = {}) {
  const Values q = q_in.ToVector<double>(), k = k_in.ToVector<double>(),
               v = v_in.ToVector<double>();
  const int64_t heads = q_in.size(2), kv_heads = k_in.size(2), d = q_in.size(3);
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(d));
  const auto at = [d](int64_t b, int64_t t, int64_t h, int64_t num_heads) {
    return static_cast<size_t>(((b * kTokens + t) * num_heads + h) * d);
  };
  Values out(q.size(), 0);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      for (int64_t i = 0; i < kTokens; ++i) {
        int64_t first = options.window > 0 ? std::max<int64_t>(0, i - options.window + 1) : 0;
        if (!starts.empty()) first = std::max(first, starts[static_cast<size_t>(b * kTokens + i)]);
        const int64_t last = options.causal ? i : kTokens - 1;
        double sum = 0;
        Values weights;
        for (int64_t j = first; j <= last; ++j) {
          double score = 0;
          for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
            score += q[at(b, i, h, heads) + c] * k[at(b, j, kv, kv_heads) + c];
          }
          weights.push_back(std::exp(scale * score));
          sum += weights.back();
        }
        for (int64_t j = first; j <= last; ++j) {
          for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
            out[at(b, i, h, heads) + c] +=
                weights[static_cast<size_t>(j - first)] / sum * v[at(b, j, kv, kv_heads) + c];
          }
        }
      }
    }
  }
  return out;
}

Tensor Random(const char* name, int64_t heads) {
  return RandomTensor({kBatch, kTokens, heads, kHeadDim}, name, CpuContext());
}

// [B, T, (H + 2 K) d]
Tensor Packed(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor packed = autograd::Concat({q, k, v}, 2);
  return packed.View({kBatch, kTokens, packed.size(2) * kHeadDim});
}

const std::vector<AttentionCoreOptions>& Variants() {
  static const std::vector<AttentionCoreOptions> variants = {
      {.head_dim = kHeadDim},
      {.head_dim = kHeadDim, .scale = 0.7},
      {.head_dim = kHeadDim, .window = 1},
      {.head_dim = kHeadDim, .scale = 0.2, .window = 4},
      {.head_dim = kHeadDim, .window = kTokens},
      {.head_dim = kHeadDim, .causal = false},
      {.head_dim = kHeadDim, .scale = 1.3, .causal = false}};
  return variants;
}

TEST(AttentionCoreTest, IsTheDefinition) {
  for (const int64_t group : {1, 3}) {
    const Tensor q = Random("q", 2 * group), k = Random("k", 2), v = Random("v", 2);
    for (AttentionCoreOptions options : Variants()) {
      options.queries_per_key = group;
      AttentionCore core(options);
      const Values want = Definition(q, k, v, options);
      ExpectClose(core.Attend(q, k, v).ToVector<double>(), want, 1e-13);
      const Tensor packed = core(Packed(q, k, v));
      EXPECT_EQ(packed.shape(), (Shape{kBatch, kTokens, 2 * group * kHeadDim}));
      ExpectClose(packed.ToVector<double>(), want, 1e-13);
    }
  }
}

TEST(AttentionCoreTest, GradientsOfPackedGroupedQueries) {
  const Tensor packed = RandomTensor({2, 5, (4 + 2 * 2) * 3}, "packed", CpuContext());
  AttentionCore core({.head_dim = 3, .scale = 0.4, .window = 3, .queries_per_key = 2});
  ExpectGradients({packed}, [&](const std::vector<Tensor>& in) { return core(in[0]); });
}

// A window does not reach over the start of a document.
TEST(AttentionCoreTest, WindowsWithinDocuments) {
  const Tensor q = Random("q", 4), k = Random("k", 2), v = Random("v", 2);
  const std::vector<int64_t> starts = {0, 0, 2, 2, 2, 2, 2, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 8};
  const autograd::DocumentsGuard guard(std::make_shared<autograd::Documents>(
      Tensor::FromVector<int64_t>(starts, {kBatch, kTokens}, CpuContext())));
  for (const int64_t window : {0, 1, 3, 5}) {
    const AttentionCoreOptions options{
        .head_dim = kHeadDim, .scale = 0.6, .window = window, .queries_per_key = 2};
    AttentionCore core(options);
    const Values want = Definition(q, k, v, options, starts);
    ExpectClose(core.Attend(q, k, v).ToVector<double>(), want, 1e-13);
    ExpectClose(core(Packed(q, k, v)).ToVector<double>(), want, 1e-13);
  }
  AttentionCore both_ways({.head_dim = kHeadDim, .causal = false});
  EXPECT_THAT([&] { both_ways.Attend(q, k, v); },
              Says(HasSubstr("packed documents need causal attention")));
}

// What takes attention's place learns the options.
TEST(AttentionCoreTest, AReplacementGetsTheOptions) {
  const Tensor q = Random("q", 4), k = Random("k", 2), v = Random("v", 2);
  AttentionCore core({.head_dim = kHeadDim, .window = 5, .queries_per_key = 2});
  core.ReplaceAttention([](const Tensor& q, const Tensor& k, const Tensor&,
                           const DocumentsPtr& documents, const AttentionCoreOptions& options) {
    EXPECT_EQ(documents, nullptr);
    EXPECT_EQ(options.window, 5);
    EXPECT_EQ(k.size(2), 2);
    return autograd::Contiguous(q);
  });
  EXPECT_EQ(core(Packed(q, k, v)).ToVector<double>(), q.ToVector<double>());
}

TEST(AttentionCoreTest, DescribesOnlyWhatDiffersFromTheDefaults) {
  const auto texts = [](const AttentionCoreOptions& options) {
    ConfigTexts texts;
    AttentionCore(options).DescribeConfig(texts);
    EXPECT_TRUE(texts.training.empty());
    return texts.function;
  };
  EXPECT_THAT(texts({.head_dim = 16}), UnorderedElementsAre(Pair("head_dim", "16")));
  EXPECT_THAT(texts({.head_dim = 16, .scale = 0.25}), UnorderedElementsAre(Pair("head_dim", "16")));
  EXPECT_THAT(texts({.head_dim = 16, .scale = 0.5, .window = 7, .queries_per_key = 3}),
              UnorderedElementsAre(Pair("head_dim", "16"), Pair("scale", ConfigText(0.5)),
                                   Pair("window", "7"), Pair("queries_per_key", "3")));
  EXPECT_THAT(texts({.head_dim = 16, .causal = false}),
              UnorderedElementsAre(Pair("head_dim", "16"), Pair("causal", ConfigText(false))));
}

TEST(AttentionCoreTest, Misuse) {
  const auto make = [](const AttentionCoreOptions& options) {
    return [options] { AttentionCore core(options); };
  };
  EXPECT_THAT(make({.scale = -1, .window = -2, .soft_cap = -3, .queries_per_key = 0}),
              Says(AllOf(HasSubstr("head_dim must be positive, got 0"),
                         HasSubstr("scale must be above 0, or 0 for 1 / sqrt(head_dim), got -1"),
                         HasSubstr("window must be above 0, or 0 for none, got -2"),
                         HasSubstr("soft_cap must be above 0, or 0 for none, got -3"),
                         HasSubstr("queries_per_key must be positive, got 0"))));
  EXPECT_THAT(make({.head_dim = 4, .window = 3, .causal = false}),
              Says(AllOf(HasSubstr("a window of 3 needs causal attention"),
                         Not(HasSubstr("head_dim must")))));
  AttentionCore core({.head_dim = 4, .queries_per_key = 2});
  EXPECT_THAT(
      [&] {
        core(RandomTensor({1, 3, 24}, "x", CpuContext()));
      },
      Says(HasSubstr("needs packed q, k and v [batch, tokens, n * 4 heads of 4], got "
                     "[1, 3, 24]")));
}

}  // namespace attention_test
}  // namespace apogee::nn
