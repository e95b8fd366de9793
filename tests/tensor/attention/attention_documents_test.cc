// SPDX-License-Identifier: Apache-2.0

// Fused attention over packed documents, and with any first keys, against the definition in f64.
#include "apogee/tests/tensor/attention/attention_definition.h"

namespace apogee {
namespace attention_test {

const Problem kDocuments[] = {
    {.heads = 4,
     .kv_heads = 2,
     .q_tokens = 140,
     .kv_tokens = 140,
     .head_dim = 20,
     .threads = 2,
     .documents = Documents::kPacked},
    {.heads = 2, .kv_heads = 1, .q_tokens = 9, .kv_tokens = 150, .documents = Documents::kPacked},
    {.q_tokens = 70, .kv_tokens = 70, .window = 9, .documents = Documents::kPacked},
    {.q_tokens = 50, .kv_tokens = 50, .mask = Mask::kBias, .documents = Documents::kPacked},
    {.batch = 1, .q_tokens = 131, .kv_tokens = 131, .documents = Documents::kAnywhere},
    {.heads = 2,
     .kv_heads = 1,
     .q_tokens = 70,
     .kv_tokens = 100,
     .head_dim = 40,
     .causal = false,
     .wide = true,
     .documents = Documents::kAnywhere},
    {.batch = 1,
     .heads = 1,
     .kv_heads = 1,
     .q_tokens = 70,
     .kv_tokens = 20,
     .head_dim = 160,
     .causal = false,
     .documents = Documents::kAnywhere},
};

TEST(AttentionDocumentsTest, QueriesSeeNoKeyBeforeTheirFirst) {
  for (const Problem& problem : kDocuments) {
    ExpectDefinition(DType::kF64, problem, 1e-12);
    ExpectDefinition(DType::kF32, problem, 5e-5);
    ExpectDefinition(DType::kBF16, problem, 0.1);
  }
}

TEST(AttentionDocumentsTest, ADocumentBeginsAtEveryPlaceOfATile) {
  for (int64_t first = 1; first <= 64; ++first) {
    ExpectDefinition(DType::kF64,
                     {.batch = 1,
                      .heads = 1,
                      .kv_heads = 1,
                      .q_tokens = 66,
                      .kv_tokens = 66 + 2 * (first % 2),
                      .head_dim = 4,
                      .documents = Documents::kTwo,
                      .second_document = first},
                     1e-12);
  }
}

}  // namespace attention_test
}  // namespace apogee
