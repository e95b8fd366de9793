// SPDX-License-Identifier: Apache-2.0

// Fused attention against the definition in f64: masks, grouped heads, packed layouts, sizes,
// dtypes.
#include "apogee/tests/tensor/attention/attention_definition.h"

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

// One to five queries over many keys, as in generation. Up to four have a path of their own on the
// CPU. Gradients, which have none, come from sums that almost cancel.
const Problem kFewQueries[] = {
    {.q_tokens = 1, .kv_tokens = 2, .head_dim = 64},
    {.q_tokens = 1, .kv_tokens = 16, .head_dim = 16},
    {.heads = 3, .kv_heads = 3, .q_tokens = 1, .kv_tokens = 67, .head_dim = 20, .threads = 2},
    {.heads = 8, .kv_heads = 2, .q_tokens = 1, .kv_tokens = 301, .head_dim = 64, .threads = 3},
    {.heads = 4, .kv_heads = 1, .q_tokens = 3, .kv_tokens = 150, .head_dim = 24, .wide = true},
    {.q_tokens = 4, .kv_tokens = 131, .head_dim = 5, .causal = false},
    {.q_tokens = 5, .kv_tokens = 131, .head_dim = 48},
    {.q_tokens = 2, .kv_tokens = 70, .head_dim = 80, .window = 33},
    {.heads = 4, .kv_heads = 2, .q_tokens = 4, .kv_tokens = 160, .head_dim = 32, .window = 1},
    {.q_tokens = 3, .kv_tokens = 90, .mask = Mask::kKeys},
    {.heads = 4, .kv_heads = 2, .q_tokens = 4, .kv_tokens = 90, .window = 40, .mask = Mask::kBias},
    {.q_tokens = 4, .kv_tokens = 96, .head_dim = 16, .documents = Documents::kPacked},
    {.q_tokens = 3, .kv_tokens = 64, .causal = false, .documents = Documents::kAnywhere},
    {.q_tokens = 2, .kv_tokens = 75, .documents = Documents::kTwo, .second_document = 50},
};

TEST(AttentionTest, FewQueries) {
  for (Problem problem : kFewQueries) {
    problem.forward_only = true;
    for (const double soft_cap : {0.0, 2.0}) {
      problem.soft_cap = soft_cap;
      ExpectDefinition(DType::kF64, problem, 1e-12);
      ExpectDefinition(DType::kF32, problem, 5e-5);
      ExpectDefinition(DType::kBF16, problem, 0.1);
      ExpectDefinition(DType::kF16, problem, 0.01);
    }
  }
}

// Scaled scores have a deviation of 1 to 3. A mask or window hides keys after the cap.
TEST(AttentionTest, SoftCaps) {
  std::vector<Problem> problems(std::begin(kMasked), std::end(kMasked));
  for (size_t i = 0; i < std::size(kProblems); i += 3) problems.push_back(kProblems[i]);
  problems.push_back({.heads = 4, .kv_heads = 1, .q_tokens = 9, .kv_tokens = 150, .head_dim = 24});
  problems.push_back({.q_tokens = 67, .kv_tokens = 67, .head_dim = 96});
  problems.push_back({.q_tokens = 80, .kv_tokens = 21});
  problems.push_back({.q_tokens = 70,
                      .kv_tokens = 70,
                      .wide = true,
                      .mask = Mask::kBias,
                      .documents = Documents::kPacked});
  for (size_t i = 0; i < problems.size(); ++i) {
    problems[i].soft_cap = i % 3 == 0 ? 0.5 : i % 3 == 1 ? 2.0 : 30.0;
    ExpectDefinition(DType::kF64, problems[i], 1e-12);
    ExpectDefinition(DType::kF32, problems[i], 5e-5);
    ExpectDefinition(DType::kBF16, problems[i], 0.1);
    ExpectDefinition(DType::kF16, problems[i], 0.02);
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
