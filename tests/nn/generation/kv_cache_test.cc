// SPDX-License-Identifier: Apache-2.0

// Logits with a key/value cache are those of a forward of all tokens, and each row's are those of
// the row alone.
#include "apogee/nn/generation/kv_cache.h"

#include <gmock/gmock.h>

#include <memory>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/nn/tiny_models.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace kv_cache_test {

using apogee::testing::Says;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tokens = std::vector<int64_t>;
using Rows = std::vector<Tokens>;

constexpr int64_t kPositions = 21, kVocab = 17;

std::unique_ptr<Module> MakeModel(bool llama, DType dtype, bool recompute = false) {
  std::unique_ptr<Module> model;
  if (llama) {
    LlamaConfig config = module_test::TinyLlama();
    config.max_position_embeddings = kPositions;
    config.recompute = recompute;
    model = std::make_unique<Llama>(config);
  } else {
    Gpt2Config config = module_test::TinyGpt2();
    config.n_positions = kPositions;
    config.recompute = recompute;
    model = std::make_unique<Gpt2>(config);
  }
  model->SetInit("*.weight", Init::Normal(0, 0.3));
  model->Initialize(CpuContext(), {.seed = 3, .dtype = dtype});
  model->Train(false);
  return model;
}

Tokens TokensOf(int64_t row, int64_t length) {
  Tokens tokens;
  for (int64_t t = 0; t < length; ++t) tokens.push_back((t * t + 3 * t + 5 * row) % kVocab);
  return tokens;
}

Tensor AsTensor(const Rows& rows) {
  Tokens all;
  for (const Tokens& row : rows) all.insert(all.end(), row.begin(), row.end());
  return Tensor::FromVector<int64_t>(all, {std::ssize(rows), std::ssize(rows[0])}, CpuContext());
}

// Logits of row b, token by token: the row is read alone and whole.
std::vector<double> Alone(Module& model, const Tokens& row) {
  const autograd::NoGradGuard no_grad;
  return model(AsTensor({row})).ToVector<double>();
}

// Of all rows, which begin with padding of id 16. Read in parts of these lengths.
std::vector<std::vector<double>> Cached(Module& model, const Rows& rows, const Tokens& parts) {
  const autograd::NoGradGuard no_grad;
  size_t longest = 0;
  for (const Tokens& row : rows) longest = std::max(longest, row.size());
  Rows padded;
  Tokens padding;
  for (const Tokens& row : rows) {
    padding.push_back(static_cast<int64_t>(longest - row.size()));
    padded.emplace_back(longest - row.size(), 16);
    padded.back().insert(padded.back().end(), row.begin(), row.end());
  }
  KvCache cache(std::ssize(rows), static_cast<int64_t>(longest), padding);
  std::vector<std::vector<double>> logits(rows.size());
  for (const int64_t part : parts) {
    const int64_t begin = cache.length();
    Rows piece;
    for (const Tokens& row : padded) {
      piece.emplace_back(row.begin() + begin, row.begin() + begin + part);
    }
    const KvCacheGuard guard(&cache);
    const Tensor out = model(AsTensor(piece));
    cache.Advance(part);
    for (size_t b = 0; b < rows.size(); ++b) {
      for (int64_t t = 0; t < part; ++t) {
        if (begin + t < padding[b]) continue;
        const auto of_token = out.Slice(0, static_cast<int64_t>(b), 1).Slice(1, t, 1);
        const std::vector<double> values = of_token.ToVector<double>();
        logits[b].insert(logits[b].end(), values.begin(), values.end());
      }
    }
  }
  EXPECT_EQ(cache.length(), static_cast<int64_t>(longest));
  return logits;
}

const std::vector<Tokens> kParts = {{19},
                                    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                    {7, 1, 1, 5, 3, 2},
                                    {2, 16, 1}};

TEST(KvCacheTest, LogitsAreThoseOfTheWholeForward) {
  for (const bool llama : {false, true}) {
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      const auto model = MakeModel(llama, dtype, /*recompute=*/dtype == DType::kF32);
      const double tolerance = dtype == DType::kF64 ? 1e-12 : 3e-6;
      for (const Rows& rows : {Rows{TokensOf(1, 19)}, Rows{TokensOf(2, 19), TokensOf(3, 19)},
                               Rows{TokensOf(4, 5), TokensOf(5, 19), TokensOf(6, 18)}}) {
        for (const Tokens& parts : kParts) {
          SCOPED_TRACE(::testing::Message()
                       << "llama " << llama << ", " << DTypeName(dtype) << ", " << rows.size()
                       << " rows, " << parts.size() << " parts");
          const std::vector<std::vector<double>> logits = Cached(*model, rows, parts);
          for (size_t b = 0; b < rows.size(); ++b) {
            ExpectClose(logits[b], Alone(*model, rows[b]), tolerance);
          }
        }
      }
    }
  }
}

// Positions and room are counted from the row's own begin.
TEST(KvCacheTest, CountsPositionsOfTheLongestRow) {
  for (const bool llama : {false, true}) {
    const auto model = MakeModel(llama, DType::kF64);
    const autograd::NoGradGuard no_grad;
    KvCache cache(2, kPositions + 4, {1, 3});
    const KvCacheGuard guard(&cache);
    (*model)(AsTensor({TokensOf(0, kPositions), TokensOf(1, kPositions)}));
    cache.Advance(kPositions);
    (*model)(AsTensor({{1}, {2}}));
    cache.Advance(1);
    EXPECT_EQ(cache.PositionsWith(0), kPositions);
    EXPECT_THAT(
        [&] {
          (*model)(AsTensor({{1}, {2}}));
        },
        Says(HasSubstr("got [2, " + std::to_string(kPositions + 1) + "]")));
  }
}

TEST(KvCacheTest, GuardsNest) {
  KvCache outer(1, 4), inner(1, 4);
  EXPECT_EQ(CurrentKvCache(), nullptr);
  {
    const KvCacheGuard guard(&outer);
    {
      const KvCacheGuard nested(&inner);
      EXPECT_EQ(CurrentKvCache(), &inner);
    }
    EXPECT_EQ(CurrentKvCache(), &outer);
  }
  EXPECT_EQ(CurrentKvCache(), nullptr);
}

TEST(KvCacheTest, Refusals) {
  EXPECT_THAT([] { KvCache(0, 4); }, Says(HasSubstr("must be positive, got 0 and 4")));
  EXPECT_THAT([] { KvCache(2, 4, {1}); }, Says(HasSubstr("for each of the 2 rows; got 1 numbers")));
  EXPECT_THAT([] { KvCache(2, 4, {1, 4}); }, Says(HasSubstr("a number from 0 to 3")));

  const auto model = MakeModel(true, DType::kF64);
  const Tensor tokens = AsTensor({TokensOf(1, 3)});
  const auto run = [&](KvCache& cache) {
    const KvCacheGuard guard(&cache);
    (*model)(tokens);
  };
  KvCache unused(1, 4);
  EXPECT_THAT([&] { run(unused); },
              Says(AllOf(HasSubstr("\"model.layers.0.self_attn.core\""),
                         HasSubstr("call model.Train(false) and make an autograd::NoGradGuard"))));
  const autograd::NoGradGuard no_grad;
  model->Train();
  EXPECT_THAT([&] { run(unused); }, Says(HasSubstr("a cache is for evaluation")));
  model->Train(false);
  KvCache two_rows(2, 4), small(1, 2), read(1, 8);
  EXPECT_THAT([&] { run(two_rows); }, Says(HasSubstr("the batch has 1 rows, the cache has 2")));
  EXPECT_THAT([&] { run(small); }, Says(HasSubstr("0 cached tokens and 3 new ones exceed its "
                                                  "max_tokens 2")));
  run(read);
  EXPECT_THAT([&] { read.Advance(2); }, Says(HasSubstr("has read 3 tokens")));
  EXPECT_THAT([&] { run(read); }, Says(HasSubstr("it has read 3 tokens since the last Advance")));
  KvCache packed(1, 8);
  const Tensor starts = Tensor::FromVector<int64_t>({0, 0, 2}, {1, 3}, CpuContext());
  EXPECT_THAT(
      [&] {
        const KvCacheGuard guard(&packed);
        (*model)({{"tokens", tokens}, {"starts", starts}});
      },
      Says(HasSubstr("packed documents and a key/value cache exclude each other")));
}

class Mixer : public Module {
 public:
  Mixer() : gru_(Register("gru", std::make_shared<Gru>(2, 2))) {}
  bool takes_documents() const override { return true; }

 private:
  std::shared_ptr<Gru> gru_;
};

TEST(KvCacheTest, ModelsThatCannot) {
  EXPECT_EQ(KvCacheProblem(*MakeModel(true, DType::kF64)), "");
  Mixer mixer;
  EXPECT_THAT(KvCacheProblem(mixer), HasSubstr("module \"gru\" mixes tokens"));
  Gru gru(2, 2);
  EXPECT_THAT(KvCacheProblem(gru), HasSubstr("Module::takes_documents"));
  const auto model = MakeModel(false, DType::kF64);
  model->Modules().back()->set_sequence_part({.rank = 0, .size = 2});
  EXPECT_THAT(KvCacheProblem(*model), HasSubstr("sequence parallelism"));
}

// Another attention over parts of sequences (sequence parallelism) has no cache.
TEST(KvCacheTest, ReplacedAttention) {
  AttentionCore core(2);
  core.Train(false);
  core.ReplaceAttention([](const Tensor& q, const Tensor&, const Tensor&, const DocumentsPtr&,
                           const AttentionCoreOptions&) { return q; });
  const autograd::NoGradGuard no_grad;
  const Tensor x = Tensor::Zeros({1, 3, 1, 2}, DType::kF32, CpuContext());
  KvCache cache(1, 4);
  const KvCacheGuard guard(&cache);
  EXPECT_THAT([&] { core.Attend(x, x, x); }, Says(HasSubstr("set use_cache = false")));
}

}  // namespace kv_cache_test
}  // namespace apogee::nn
