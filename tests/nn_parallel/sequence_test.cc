// SPDX-License-Identifier: Apache-2.0

// Sequences that ranks hold parts of: attention over them, and how they are cut and put together,
// equal the one-rank functions.
#include <gmock/gmock-matchers.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/parallel/all_to_all_attention.h"
#include "apogee/nn/parallel/ring_attention.h"
#include "apogee/nn/parallel/sequence_functions.h"
#include "apogee/nn/parallel/sequence_loss.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::nn::parallel {
namespace sequence_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::Parameter;
using comm::CollectiveKind;

SequencePart PartOf(const comm::World& world, SequenceLayout layout) {
  return {.rank = world.rank(), .size = world.size(), .layout = layout};
}

struct AttentionShape {
  int ranks;
  int64_t batch, tokens, heads, kv_heads, head_dim;
};

using AttentionFunction = Tensor (*)(const Tensor&, const Tensor&, const Tensor&,
                                     const comm::GroupPtr&, const DocumentsPtr&,
                                     const AttentionCoreOptions&);

// Documents of 1, 2, 3, .. tokens; of every sample with others in front.
DocumentsPtr MakeDocuments(int64_t batch, int64_t tokens, const ContextPtr& context) {
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0, begin = 0, length = 1 + 3 * b; t < tokens; ++t) {
      if (t == begin + length) {
        begin = t;
        ++length;
      }
      starts.push_back(begin);
    }
  }
  return std::make_shared<autograd::Documents>(
      Tensor::FromVector<int64_t>(starts, {batch, tokens}, context));
}

// Output and gradients of q, k and v of whole sequences, through `attend` on parts of them.
void ExpectEqualsOneRank(const AttentionShape& s, SequenceLayout layout, AttentionFunction attend,
                         DType dtype = DType::kF64, double tolerance = 1e-12, bool packed = false,
                         const AttentionCoreOptions& core = {}) {
  RunRanks(s.ranks, [&](comm::World& world) {
    const auto random = [&](const char* name, int64_t heads) {
      return RandomTensor({s.batch, s.tokens, heads, s.head_dim}, name, world.context()).To(dtype);
    };
    const Tensor dy = random("dy", s.heads);
    Parameter q("q", random("q", s.heads)), k("k", random("k", s.kv_heads)),
        v("v", random("v", s.kv_heads));
    DocumentsPtr documents;
    autograd::AttentionOptions options{
        .scale = core.scale, .causal = core.causal, .window = core.window};
    if (packed) {
      documents = MakeDocuments(s.batch, s.tokens, world.context());
      options.first_keys = documents->FirstKeys({}, {});
    }
    const Tensor want = autograd::Attention(q.value(), k.value(), v.value(), options);
    autograd::Backward(want, {.grad = dy});

    const SequencePart part = PartOf(world, layout);
    Parameter own_q("q", TokensOf(q.data(), part)), own_k("k", TokensOf(k.data(), part)),
        own_v("v", TokensOf(v.data(), part));
    const Tensor y =
        attend(own_q.value(), own_k.value(), own_v.value(), world.group(), documents, core);
    EXPECT_EQ(y.dtype(), dtype);
    autograd::Backward(y, {.grad = TokensOf(dy, part)});
    const auto whole = [&](const Tensor& x) {
      return WholeTokens(x, part, *world.group()).ToVector<double>();
    };
    ExpectClose(whole(y), want.ToVector<double>(), tolerance);
    ExpectClose(whole(own_q.grad()), q.grad().ToVector<double>(), tolerance);
    ExpectClose(whole(own_k.grad()), k.grad().ToVector<double>(), tolerance);
    ExpectClose(whole(own_v.grad()), v.grad().ToVector<double>(), tolerance);
  });
}

TEST(RingAttentionTest, EqualsOneRank) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 1, 4, 1, 1, 4}, AttentionShape{2, 2, 20, 4, 2, 8},
        AttentionShape{3, 2, 30, 3, 1, 5}, AttentionShape{3, 1, 66, 4, 4, 16},
        AttentionShape{4, 3, 8, 2, 2, 3}, AttentionShape{4, 2, 264, 6, 3, 8}}) {
    ExpectEqualsOneRank(shape, SequenceLayout::kZigZag, &RingAttention);
  }
}

// In most steps some queries see no key, and in some no query does.
TEST(RingAttentionTest, DocumentsStayApart) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 20, 4, 2, 8}, AttentionShape{3, 2, 30, 3, 1, 5},
        AttentionShape{4, 3, 8, 2, 2, 3}, AttentionShape{4, 2, 264, 2, 1, 8}}) {
    ExpectEqualsOneRank(shape, SequenceLayout::kZigZag, &RingAttention, DType::kF64, 1e-12, true);
  }
}

// Windows within a piece, of whole pieces and beyond, of which some steps see no key at all.
TEST(RingAttentionTest, WindowsAndScales) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 20, 4, 2, 8}, AttentionShape{3, 2, 30, 3, 1, 5},
        AttentionShape{4, 2, 24, 2, 2, 3}, AttentionShape{4, 1, 264, 2, 1, 8}}) {
    const int64_t piece = shape.tokens / (2 * shape.ranks);
    for (const int64_t window : {int64_t{1}, int64_t{2}, piece, piece + 1, piece + 2, 2 * piece + 1,
                                 2 * piece + 2, 3 * piece, shape.tokens}) {
      for (const bool packed : {false, true}) {
        SCOPED_TRACE(::testing::Message() << shape.ranks << " ranks, " << shape.tokens
                                          << " tokens, window " << window << ", packed " << packed);
        ExpectEqualsOneRank(shape, SequenceLayout::kZigZag, &RingAttention, DType::kF64, 1e-12,
                            packed, {.scale = 0.3, .window = window});
      }
    }
  }
}

TEST(RingAttentionTest, NeedsCausalAttention) {
  RunRanks(2, [](comm::World& world) {
    const Tensor x = RandomTensor({1, 2, 2, 4}, "x", world.context());
    EXPECT_THAT([&] { RingAttention(x, x, x, world.group(), nullptr, {.causal = false}); },
                ::testing::Throws<Error>(::testing::Property(
                    &Error::what, ::testing::HasSubstr("needs causal attention"))));
  });
}

// Steps are summed in f32: results are as near as those of one rank are to each other.
TEST(RingAttentionTest, SumsOfHalvesAreRoundedOnce) {
  ExpectEqualsOneRank({4, 2, 64, 4, 2, 8}, SequenceLayout::kZigZag, &RingAttention, DType::kBF16,
                      0.02);
}

TEST(AllToAllAttentionTest, EqualsOneRank) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 10, 4, 2, 8}, AttentionShape{2, 1, 6, 2, 2, 3},
        AttentionShape{3, 2, 21, 6, 3, 5}, AttentionShape{4, 3, 12, 8, 4, 4}}) {
    ExpectEqualsOneRank(shape, SequenceLayout::kContiguous, &AllToAllAttention);
  }
}

TEST(AllToAllAttentionTest, DocumentsStayApart) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 10, 4, 2, 8}, AttentionShape{3, 2, 21, 6, 3, 5}}) {
    ExpectEqualsOneRank(shape, SequenceLayout::kContiguous, &AllToAllAttention, DType::kF64, 1e-12,
                        true);
  }
}

TEST(AllToAllAttentionTest, WindowsScalesAndBothDirections) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 10, 4, 2, 8}, AttentionShape{3, 2, 21, 6, 3, 5},
        AttentionShape{4, 1, 12, 8, 4, 4}}) {
    for (const int64_t window : {int64_t{2}, shape.tokens / shape.ranks + 2}) {
      for (const bool packed : {false, true}) {
        ExpectEqualsOneRank(shape, SequenceLayout::kContiguous, &AllToAllAttention, DType::kF64,
                            1e-12, packed, {.scale = 0.3, .window = window});
      }
    }
    ExpectEqualsOneRank(shape, SequenceLayout::kContiguous, &AllToAllAttention, DType::kF64, 1e-12,
                        false, {.scale = 0.3, .causal = false});
  }
}

TEST(AllToAllAttentionTest, NeedsADivisorOfTheHeads) {
  RunRanks(2, [](comm::World& world) {
    const Tensor x = RandomTensor({1, 2, 3, 4}, "x", world.context());
    EXPECT_THAT([&] { AllToAllAttention(x, x, x, world.group()); },
                ::testing::Throws<Error>(::testing::Property(
                    &Error::what, ::testing::HasSubstr("2 ranks do not divide the 3 heads"))));
  });
}

TEST(AttentionTrafficTest, IsWhatTheHeadersSay) {
  constexpr int64_t kBatch = 2, kTokens = 16, kHeads = 4, kKvHeads = 2, kDim = 3, kRanks = 4;
  const auto run = [&](AttentionFunction attend, int ranks, const auto& check) {
    RunRanks(ranks, [&](comm::World& world) {
      const int64_t tokens = kTokens / world.size();
      const auto random = [&](int64_t heads) {
        return RandomTensor({kBatch, tokens, heads, kDim}, "x", world.context()).To(DType::kBF16);
      };
      Parameter q("q", random(kHeads)), k("k", random(kKvHeads)), v("v", random(kKvHeads));
      const Tensor y = attend(q.value(), k.value(), v.value(), world.group(), nullptr, {});
      const comm::Traffic forward = world.group()->traffic();
      autograd::Backward(y, {.grad = random(kHeads)});
      check(forward, world.group()->traffic() - forward, kBatch * tokens * kDim);
    });
  };
  run(&RingAttention, kRanks, [](const auto& forward, const auto& backward, int64_t head) {
    const int64_t kv = 2 * kKvHeads * head;
    for (const CollectiveKind kind : {CollectiveKind::kSend, CollectiveKind::kRecv}) {
      EXPECT_EQ(forward.bytes(kind), (kRanks - 1) * kv * 2);
      EXPECT_EQ(backward.bytes(kind), (kRanks - 1) * kv * 2 + kRanks * kv * 4);
    }
    EXPECT_EQ(forward.total_calls() + backward.total_calls(), 2 * (3 + 3 + 4));
  });
  run(&AllToAllAttention, 2, [](const auto& forward, const auto& backward, int64_t head) {
    for (const comm::Traffic& traffic : {forward, backward}) {
      EXPECT_EQ(traffic.bytes(CollectiveKind::kAllToAll), (2 * kHeads + 2 * kKvHeads) * head * 2);
      EXPECT_EQ(traffic.total_calls(), 4);
    }
  });
}

class SequenceFunctionsTest : public ::testing::TestWithParam<int> {};

// Gradients of sum_i w_i x_i^2, where each rank has its tokens.
TEST_P(SequenceFunctionsTest, SplitAndGather) {
  for (const SequenceLayout layout : {SequenceLayout::kContiguous, SequenceLayout::kZigZag}) {
    RunRanks(GetParam(), [&](comm::World& world) {
      const int64_t tokens = 2 * 2 * 3;
      const SequencePart part = PartOf(world, layout);
      Parameter x("x", RandomTensor({2, tokens, 5}, "x", world.context()));
      const Tensor own = SplitTokens(x.value(), part, world.group(), 2.0);
      EXPECT_EQ(own.shape(), (Shape{2, tokens / world.size(), 5}));
      Parameter inside("inside", own.Detach().Clone());
      const Tensor y = GatherTokens(autograd::Mul(own, inside.value()), part, world.group(), 2.0);
      const Tensor dy = RandomTensor({2, tokens, 5}, "dy", world.context());
      autograd::Backward(y, {.grad = dy});

      const Tensor want = autograd::Mul(x.data(), x.data());
      const Tensor want_grad = autograd::Mul(x.data(), dy);
      ExpectClose(y.ToVector<double>(), want.ToVector<double>(), 0);
      ExpectClose(x.grad().ToVector<double>(), want_grad.ToVector<double>(), 1e-14);
      ExpectClose(inside.grad().ToVector<double>(),
                  autograd::Scale(TokensOf(want_grad, part), 2.0).ToVector<double>(), 1e-14);
    });
  }
}

// sum_r (r + 1) x, of which each rank gets the sum of its tokens.
TEST_P(SequenceFunctionsTest, GatherAndReduceScatter) {
  RunRanks(GetParam(), [](comm::World& world) {
    const SequencePart part = PartOf(world, SequenceLayout::kContiguous);
    const Tensor x = RandomTensor({2, 6, 5}, "x", world.context());
    const Tensor dy = RandomTensor({2, 6, 5}, "dy", world.context());
    Parameter own("own", TokensOf(x, part));
    const Tensor addend =
        autograd::Scale(GatherSequence(own.value(), world.group()), world.rank() + 1);
    const Tensor y = ReduceScatterSequence(addend, world.group(), DType::kF64);
    autograd::Backward(y, {.grad = TokensOf(dy, part)});
    const double factor = world.size() * (world.size() + 1) / 2.0;
    ExpectClose(y.ToVector<double>(), autograd::Scale(TokensOf(x, part), factor).ToVector<double>(),
                1e-14);
    ExpectClose(own.grad().ToVector<double>(),
                autograd::Scale(TokensOf(dy, part), factor).ToVector<double>(), 1e-14);
    EXPECT_EQ(world.group()->traffic().calls(CollectiveKind::kAllGather), 2);
    EXPECT_EQ(world.group()->traffic().bytes(CollectiveKind::kAllGather), 2 * 60 * 8);
    EXPECT_EQ(world.group()->traffic().calls(CollectiveKind::kReduceScatter), 2);
    EXPECT_EQ(world.group()->traffic().bytes(CollectiveKind::kReduceScatter), 2 * 60 * 8);
    EXPECT_EQ(world.group()->traffic().total_calls(), 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SequenceFunctionsTest, ::testing::Values(2, 3));

TEST(SequenceFunctionsErrorTest, SequencesThatDoNotDivide) {
  RunRanks(2, [](comm::World& world) {
    const Tensor x = RandomTensor({2, 6}, "x", world.context());
    EXPECT_NO_THROW(TokensOf(x, PartOf(world, SequenceLayout::kContiguous)));
    EXPECT_THAT(
        [&] { TokensOf(x, PartOf(world, SequenceLayout::kZigZag)); },
        ::testing::Throws<Error>(::testing::Property(
            &Error::what, ::testing::HasSubstr("sequences of 6 tokens do not divide by 4"))));
  });
}

// Ranks have 2, 0 and 1 targets.
TEST(SequenceLossTest, IsTheMeanOfAllTargets) {
  RunRanks(3, [](comm::World& world) {
    const std::vector<double> means = {5, std::nan(""), 2};
    const std::vector<int64_t> counts = {2, 0, 1};
    const auto rank = static_cast<size_t>(world.rank());
    Parameter mean("mean", Tensor::Full({}, DType::kF64, means[rank], world.context()));
    const Tensor loss = MeanOverSequence(mean.value(), counts[rank], world.group());
    EXPECT_DOUBLE_EQ(loss.Item(), 4);
    autograd::Backward(loss);
    EXPECT_DOUBLE_EQ(mean.grad().Item(), 3 * static_cast<double>(counts[rank]) / 3);
  });
}

// Positions, rotated or learned, and masks are those of the tokens that are here.
TEST(SequencePartTest, PlacesOfTokens) {
  const ContextPtr context = CpuContext();
  constexpr int64_t kTokens = 12;
  const Tensor x = RandomTensor({2, kTokens, 3, 4}, "x", context);
  const Tensor table = RandomTensor({kTokens, 4}, "table", context);
  const AttentionCore whole(4);
  Generator generator(3);
  const Tensor rotated = whole.Rotated(x, {.theta = 100});
  const Tensor masked = autograd::Dropout(x, 0.5, generator);
  for (const SequenceLayout layout : {SequenceLayout::kContiguous, SequenceLayout::kZigZag}) {
    for (const int size : {2, 3}) {
      for (int rank = 0; rank < size; ++rank) {
        const SequencePart part{.rank = rank, .size = size, .layout = layout};
        AttentionCore core(4);
        core.set_sequence_part(part);
        const Tensor own = TokensOf(x, part);
        EXPECT_EQ(core.Rotated(own, {.theta = 100}).ToVector<double>(),
                  TokensOf(rotated, part).ToVector<double>());
        EXPECT_EQ(
            RowsOfTokens(table, Tensor::Empty({2, kTokens / size}, DType::kI64, context), part)
                .ToVector<double>(),
            TokensOf(table.View({1, kTokens, 4}), part).ToVector<double>());
        Generator again(3);
        EXPECT_EQ(autograd::Dropout(own, 0.5, again, {}, part).ToVector<double>(),
                  TokensOf(masked, part).ToVector<double>());
      }
    }
  }
}

// The second samples of a batch, whose columns are cut, too.
TEST(SequencePartTest, MasksOfSamplesAndColumns) {
  const ContextPtr context = CpuContext();
  const Tensor x = RandomTensor({4, 8, 6}, "x", context);
  Generator generator(3);
  const Tensor masked = autograd::Dropout(x, 0.5, generator);
  const SequencePart part{.rank = 1, .size = 2, .layout = SequenceLayout::kZigZag};
  const auto cut = [&](const Tensor& t) {
    return TokensOf(t.Slice(0, 2, 2), part).Slice(2, 3, 3).Contiguous();
  };
  Generator again(3);
  again.set_first_sample(2);
  EXPECT_EQ(
      autograd::Dropout(cut(x), 0.5, again, {.first = 3, .total = 6}, part).ToVector<double>(),
      cut(masked).ToVector<double>());
}

}  // namespace sequence_test
}  // namespace apogee::nn::parallel
