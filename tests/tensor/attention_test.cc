// SPDX-License-Identifier: Apache-2.0

// Fused attention against the definition in f64: masks, grouped heads, packed layouts, sizes,
// dtypes.
#include "apogee/tests/tensor/attention_definition.h"

namespace apogee {
namespace attention_test {

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
    {.batch = 1, .heads = 2, .kv_heads = 1, .q_tokens = 70, .kv_tokens = 90, .wide = true},
    {.batch = 1, .heads = 1, .kv_heads = 1, .q_tokens = 90, .kv_tokens = 90, .head_dim = 80},
    {.batch = 1, .heads = 2, .kv_heads = 1, .q_tokens = 260, .kv_tokens = 250, .head_dim = 40},
};

const Problem kMasked[] = {
    {.q_tokens = 67, .kv_tokens = 67, .head_dim = 20, .threads = 2, .window = 5},
    {.q_tokens = 200, .kv_tokens = 200, .head_dim = 16, .window = 70},
    {.heads = 4, .kv_heads = 2, .q_tokens = 9, .kv_tokens = 150, .window = 40},
    {.q_tokens = 20, .kv_tokens = 20, .window = 1},
    {.q_tokens = 70, .kv_tokens = 131, .head_dim = 24, .causal = false, .mask = Mask::kKeys},
    {.heads = 4, .kv_heads = 2, .q_tokens = 67, .kv_tokens = 67, .mask = Mask::kKeys},
    {.q_tokens = 70, .kv_tokens = 131, .head_dim = 24, .causal = false, .mask = Mask::kBias},
    {.heads = 6, .kv_heads = 2, .q_tokens = 70, .kv_tokens = 70, .threads = 2, .mask = Mask::kBias},
    {.q_tokens = 90, .kv_tokens = 100, .window = 33, .mask = Mask::kBias},
    {.batch = 1,
     .heads = 2,
     .kv_heads = 1,
     .q_tokens = 70,
     .kv_tokens = 90,
     .wide = true,
     .window = 65,
     .mask = Mask::kKeys},
};

// Also queries that see no key: the first of every batch, whose only key is masked out.
TEST(AttentionTest, MasksAndWindows) {
  for (const Problem& problem : kMasked) {
    ExpectDefinition(DType::kF64, problem, 1e-12);
    ExpectDefinition(DType::kF32, problem, 5e-5);
    ExpectDefinition(DType::kBF16, problem, 0.1);
    ExpectDefinition(DType::kF16, problem, 0.01);
  }
}

TEST(AttentionTest, F64IsExact) {
  for (const Problem& problem : kProblems) ExpectDefinition(DType::kF64, problem, 1e-12);
}
TEST(AttentionTest, F32) {
  for (const Problem& problem : kProblems) ExpectDefinition(DType::kF32, problem, 5e-5);
}
TEST(AttentionTest, BF16) {
  for (const Problem& problem : kProblems) ExpectDefinition(DType::kBF16, problem, 0.1);
}
TEST(AttentionTest, F16) {
  for (const Problem& problem : kProblems) ExpectDefinition(DType::kF16, problem, 0.01);
}
// The first queries see no key: zero output and gradients, a log-sum-exp of -inf.
TEST(AttentionTest, QueriesThatSeeNoKey) {
  ExpectDefinition(DType::kF64, {.q_tokens = 40, .kv_tokens = 21}, 1e-12);
  ExpectDefinition(DType::kF32, {.q_tokens = 140, .kv_tokens = 21}, 2e-5);
  ExpectDefinition(DType::kF16, {.q_tokens = 140, .kv_tokens = 21}, 0.01);
}

}  // namespace attention_test
}  // namespace apogee
