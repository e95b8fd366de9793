// SPDX-License-Identifier: Apache-2.0

// Packed documents: attention and positions of each equal those of the document alone.
#include "apogee/autograd/documents.h"

#include <gmock/gmock.h>

#include <numeric>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/parameter.h"
#include "apogee/autograd/recompute.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee {
namespace documents_test {

using autograd::CurrentDocuments;
using autograd::Documents;
using autograd::DocumentsGuard;
using autograd::Parameter;
using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;
using Lengths = std::vector<int64_t>;

// [1, T]
Tensor StartsOf(const Lengths& lengths, const ContextPtr& context) {
  std::vector<int64_t> starts;
  for (const int64_t length : lengths) {
    starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int64_t>(starts.size()));
  }
  return Tensor::FromVector<int64_t>(starts, {1, static_cast<int64_t>(starts.size())}, context);
}

struct Results {
  std::vector<double> out, dq, dk, dv;
  void Append(const Results& r) {
    out.insert(out.end(), r.out.begin(), r.out.end());
    dq.insert(dq.end(), r.dq.begin(), r.dq.end());
    dk.insert(dk.end(), r.dk.begin(), r.dk.end());
    dv.insert(dv.end(), r.dv.begin(), r.dv.end());
  }
};

// Attention over the tokens [first, first + count) of one sequence.
Results AttentionOver(int64_t first, int64_t count, int64_t tokens, DType dtype,
                      const Tensor& starts, const ContextPtr& context) {
  const auto part = [&](const char* name, int64_t heads) {
    return RandomTensor({1, tokens, heads, 8}, name, context).Slice(1, first, count).To(dtype);
  };
  Parameter q("q", part("q", 4)), k("k", part("k", 2)), v("v", part("v", 2));
  const Tensor out = autograd::Attention(q.value(), k.value(), v.value(), {.first_keys = starts});
  autograd::Backward(out, {.grad = part("dy", 4)});
  return {out.ToVector<double>(), q.grad().ToVector<double>(), k.grad().ToVector<double>(),
          v.grad().ToVector<double>()};
}

struct Pair {
  Results packed, alone;
};
Pair PackedAndAlone(const Lengths& lengths, DType dtype, const ContextPtr& context) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  Pair pair;
  pair.packed = AttentionOver(0, tokens, tokens, dtype, StartsOf(lengths, context), context);
  int64_t first = 0;
  for (const int64_t length : lengths) {
    pair.alone.Append(AttentionOver(first, length, tokens, dtype, {}, context));
    first += length;
  }
  return pair;
}

TEST(DocumentsTest, AttentionIsThatOfEachDocumentAlone) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const Lengths& lengths :
       {Lengths{5}, Lengths{1, 1, 1}, Lengths{3, 1, 7, 2}, Lengths{63, 2, 30}}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-12}, {DType::kF16, 0.02}}) {
      const auto [packed, alone] = PackedAndAlone(lengths, dtype, context);
      ExpectClose(packed.out, alone.out, tolerance);
      ExpectClose(packed.dq, alone.dq, tolerance);
      ExpectClose(packed.dk, alone.dk, tolerance);
      ExpectClose(packed.dv, alone.dv, tolerance);
    }
  }
}

// What tensor/kernels/attention_args.h says of documents that begin at multiples of 64.
TEST(DocumentsTest, TilesOfTheCpuHaveTheBitsOfTheDocumentAlone) {
  const ContextPtr context = CpuContext({.num_threads = 1});
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const auto [packed, alone] = PackedAndAlone({64, 128, 37}, dtype, context);
    EXPECT_EQ(packed.out, alone.out);
    EXPECT_EQ(packed.dq, alone.dq);
    EXPECT_EQ(packed.dk, alone.dk);
    EXPECT_EQ(packed.dv, alone.dv);
  }
}

TEST(DocumentsTest, Gradients) {
  const ContextPtr context = TestContext();
  const Tensor starts =
      Tensor::FromVector<int64_t>({0, 0, 0, 3, 3, 5, 0, 1, 1, 1, 4, 4}, {2, 6}, context);
  const auto random = [&](const Shape& shape, const char* name) {
    return RandomTensor(shape, name, context);
  };
  ExpectGradients({random({2, 6, 4, 6}, "q"), random({2, 6, 2, 6}, "k"), random({2, 6, 2, 6}, "v")},
                  [&](const auto& in) {
                    return autograd::Attention(in[0], in[1], in[2], {.first_keys = starts});
                  });
  ExpectGradients({random({2, 6, 3 * 8}, "qkv")}, [&](const auto& in) {
    return autograd::PackedAttention(in[0], 2, {.first_keys = starts});
  });
  Documents documents(starts);
  const Tensor positions = documents.Positions({});
  ExpectGradients({random({2, 6, 3, 4}, "x")}, [&](const auto& in) {
    return autograd::Rotary(in[0], {.theta = 100, .positions = positions});
  });
}

TEST(DocumentsTest, RotaryPositionsStartAnew) {
  const ContextPtr context = TestContext();
  Documents documents(StartsOf({4, 1, 5}, context));
  for (const DType dtype : kFloats) {
    const Tensor x = RandomTensor({1, 10, 3, 8}, "x", context).To(dtype);
    const Tensor y = autograd::Rotary(x, {.positions = documents.Positions({})});
    int64_t first = 0;
    for (const int64_t length : {4, 1, 5}) {
      EXPECT_EQ(y.Slice(1, first, length).ToVector<double>(),
                autograd::Rotary(x.Slice(1, first, length)).ToVector<double>());
      first += length;
    }
  }
}

TEST(DocumentsTest, PartsOfSequences) {
  const ContextPtr context = TestContext();
  Documents documents(StartsOf({3, 6, 3}, context));
  const auto zig_zag = [](int rank) {
    return SequencePart{.rank = rank, .size = 3, .layout = SequenceLayout::kZigZag};
  };
  const auto values = [](const Tensor& x) { return x.ToVector<int64_t>(); };
  // Rank 1 holds the tokens 2, 3, 8 and 9, of which 2 and 3 belong to different documents.
  EXPECT_EQ(values(documents.Positions(zig_zag(1))), (Lengths{2, 0, 5, 0}));
  EXPECT_EQ(values(documents.FirstKeys(zig_zag(1), zig_zag(1))), (Lengths{0, 1, 1, 3}));
  // Rank 0 holds 0, 1, 10 and 11; rank 2 holds 4 to 7.
  EXPECT_EQ(values(documents.FirstKeys(zig_zag(1), zig_zag(0))), (Lengths{0, 2, 2, 2}));
  EXPECT_EQ(values(documents.FirstKeys(zig_zag(1), zig_zag(2))), (Lengths{0, 0, 0, 4}));
  EXPECT_EQ(values(documents.FirstKeys({}, {})), (Lengths{0, 0, 0, 3, 3, 3, 3, 3, 3, 9, 9, 9}));
  // The last three tokens of a document.
  EXPECT_EQ(values(documents.FirstKeys({}, {}, 3)), (Lengths{0, 0, 0, 3, 3, 3, 4, 5, 6, 9, 9, 9}));
  // Token 8 sees 6 to 8; token 3 only itself, and 2 sees 0 to 2.
  EXPECT_EQ(values(documents.FirstKeys(zig_zag(1), zig_zag(1), 3)), (Lengths{0, 1, 2, 3}));
  EXPECT_EQ(values(documents.FirstKeys(zig_zag(1), zig_zag(2), 3)), (Lengths{0, 0, 2, 4}));
}

TEST(DocumentsTest, WindowsOfWholeSequences) {
  Documents documents(2, 6, TestContext());
  EXPECT_EQ(documents.FirstKeys({}, {}).ToVector<int64_t>(), Lengths(12, 0));
  EXPECT_EQ(documents.FirstKeys({}, {}, 4).ToVector<int64_t>(),
            (Lengths{0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2}));
}

// Several are in flight, as under a pipeline, and none is current when backward runs.
TEST(DocumentsTest, RecomputationFindsThoseOfItsFirstRun) {
  const ContextPtr context = TestContext();
  const auto loss = [&](const Tensor& qkv) {
    const Tensor out = autograd::PackedAttention(
        qkv, 2,
        CurrentDocuments() == nullptr
            ? autograd::AttentionOptions{}
            : autograd::AttentionOptions{.first_keys = CurrentDocuments()->FirstKeys({}, {})});
    return autograd::Sum(autograd::Square(out));
  };
  const auto gradients = [&](bool recompute) {
    Parameter qkv("qkv", RandomTensor({1, 9, 24}, "qkv", context));
    std::vector<Tensor> losses;
    for (const Lengths& lengths : {Lengths{2, 3, 4}, Lengths{9}, Lengths{5, 4}}) {
      const DocumentsGuard guard(std::make_shared<Documents>(StartsOf(lengths, context)));
      losses.push_back(recompute ? autograd::Recompute(loss, qkv.value()) : loss(qkv.value()));
    }
    losses.push_back(recompute ? autograd::Recompute(loss, qkv.value()) : loss(qkv.value()));
    EXPECT_EQ(CurrentDocuments(), nullptr);
    for (const Tensor& each : losses) autograd::Backward(each);
    return qkv.grad().ToVector<double>();
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(DocumentsTest, Misuse) {
  const ContextPtr context = TestContext();
  const auto of = [&](const Lengths& starts, const Shape& shape) {
    return [=] { Documents documents(Tensor::FromVector<int64_t>(starts, shape, context)); };
  };
  EXPECT_THAT(
      of({0, 0, 1}, {1, 3}),
      Says(HasSubstr("starts[0, 2] is 1; it must be 2 if this token begins a document, else "
                     "that of the token before it, 0")));
  EXPECT_THAT(of({0, 0, 1, 1}, {2, 2}), Says(HasSubstr("starts[1, 0] is 1; it must be 0")));
  EXPECT_THAT(of({0, 1, 0}, {1, 3}), Says(HasSubstr("starts[0, 2] is 0")));
  EXPECT_THAT(of({0, -1}, {1, 2}), Says(HasSubstr("starts[0, 1] is -1")));
  EXPECT_THAT(of({0, 0}, {2}), Says(HasSubstr("must be i64 [batch, tokens], got i64 [2]")));
  EXPECT_THAT([&] { Documents documents{Tensor()}; }, Says(HasSubstr("an undefined tensor")));
  const Tensor q = RandomTensor({1, 3, 2, 4}, "q", context);
  const auto attend = [&](const autograd::AttentionOptions& options) {
    return [=] { autograd::Attention(q, q, q, options); };
  };
  EXPECT_THAT(attend({.first_keys = StartsOf({2}, context)}),
              Says(HasSubstr("first_keys must be i64 [1, 3], [batch, tokens], got i64 [1, 2]")));
  EXPECT_THAT(attend({.scale = -1, .first_keys = StartsOf({3}, context)}),
              Says(HasSubstr("the scale must be above 0")));
  EXPECT_THAT([&] { autograd::Rotary(q, {.positions = StartsOf({4}, context)}); },
              Says(HasSubstr("positions must be i64 [1, 3]")));
}

}  // namespace documents_test
}  // namespace apogee
