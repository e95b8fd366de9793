// SPDX-License-Identifier: Apache-2.0

// Embedding and cross entropy over a cut vocabulary against the whole ones on one rank.
#include "apogee/nn/parallel/vocab_parallel.h"

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn::parallel {
namespace vocab_parallel_test {

using ::apogee::testing::ExpectGradients;
using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::Parameter;
using comm::CollectiveKind;

constexpr TensorShard kVocab{.dim = 0, .pad = true};
constexpr int64_t kIgnore = -100;

void ExpectSame(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.shape(), want.shape());
  const std::vector<double> expected = want.ToVector<double>();
  double floor = 1e-300;
  for (double value : expected) floor = std::max(floor, std::abs(value));
  ExpectClose(got.ToVector<double>(), expected, tolerance, floor);
}

// Rows per rank of a vocabulary, and the part that is this rank's.
int64_t LocalVocab(int64_t vocab, const comm::World& world) {
  return LocalShape(kVocab, {vocab}, world.size())[0];
}
ops::VocabPart PartOf(int64_t vocab, const comm::World& world) {
  return {.first = world.rank() * LocalVocab(vocab, world), .vocab_size = vocab};
}

// logits [rows, vocab] -> this rank's columns, whose padding holds `padding`.
Tensor LocalLogits(const Tensor& whole, const comm::World& world, double padding) {
  const Tensor columns =
      CutLocal(kVocab, whole.Transpose(0, 1).Contiguous(), world.rank(), world.size());
  const ops::VocabPart part = PartOf(whole.size(-1), world);
  const int64_t width = columns.size(0);
  const int64_t held = std::clamp<int64_t>(part.vocab_size - part.first, 0, width);
  columns.Slice(0, held, width - held).Fill(padding);
  return columns.Transpose(0, 1).Contiguous();
}

// Vocabularies: divided by all worlds, by some, and smaller than the padding makes of it.
class VocabParallelTest : public ::testing::TestWithParam<std::tuple<int, int64_t, DType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  int64_t vocab() const { return std::get<1>(GetParam()); }
  DType dtype() const { return std::get<2>(GetParam()); }
};

TEST_P(VocabParallelTest, Embedding) {
  for (const int64_t padding : {-1, 1, 4})
    RunRanks(size(), [&](comm::World& world) {
      constexpr int64_t kDim = 6;
      std::vector<int64_t> values;
      for (int64_t i = 0; i < 15; ++i) values.push_back(i * i % vocab());
      const Tensor ids = Tensor::FromVector(values, {3, 5}, world.context());
      const Tensor table = RandomTensor({vocab(), kDim}, "t", world.context(), 1, dtype());
      Parameter whole("t", table);
      Parameter local("t", CutLocal(kVocab, table, world.rank(), world.size()));
      const Tensor want = autograd::Embedding(ids, whole.value(), {}, padding);
      const Tensor got = VocabParallelEmbedding(ids, local.value(), PartOf(vocab(), world),
                                                world.group(), padding);
      const Tensor dy = RandomTensor({3, 5, kDim}, "dy", world.context(), 1, dtype());
      autograd::Backward(want, {.grad = dy});
      autograd::Backward(got, {.grad = dy});
      ExpectClose(got.ToVector<double>(), want.ToVector<double>(), 0);
      ExpectClose(local.grad().ToVector<double>(),
                  CutLocal(kVocab, whole.grad(), world.rank(), world.size()).ToVector<double>(), 0);
      if (world.group() == nullptr) return;
      EXPECT_EQ(world.group()->traffic().calls(CollectiveKind::kAllReduce), 1);
      EXPECT_EQ(world.group()->traffic().total_bytes(), 15 * kDim * DTypeSize(dtype()));
    });
}

TEST_P(VocabParallelTest, CrossEntropy) {
  for (const double smoothing : {0.0, 0.1})
    RunRanks(size(), [&](comm::World& world) {
      constexpr int64_t kRows = 17;
      // Targets in every rank's part, and ignored ones.
      std::vector<int64_t> values;
      for (int64_t r = 0; r < kRows; ++r) values.push_back(r % 5 == 3 ? kIgnore : r * 7 % vocab());
      const Tensor targets = Tensor::FromVector(values, {kRows}, world.context());
      const Tensor logits = RandomTensor({kRows, vocab()}, "l", world.context(), 3, dtype());
      // Padding that would win every maximum, and that must not be read as a target's either.
      Parameter whole("l", logits), local("l", LocalLogits(logits, world, 1e4));
      const Tensor want = autograd::CrossEntropy(whole.value(), targets, kIgnore, smoothing);
      const Tensor got = VocabParallelCrossEntropy(local.value(), targets, PartOf(vocab(), world),
                                                   world.group(), kIgnore, smoothing);
      const Tensor scale = Tensor::Full({}, got.dtype(), 0.75, world.context());
      autograd::Backward(want, {.grad = scale});
      const comm::Traffic forward = world.group() ? world.group()->traffic() : comm::Traffic();
      autograd::Backward(got, {.grad = scale});

      const double tolerance =
          dtype() == DType::kF64 ? 1e-12 : Tolerance(dtype(), ErrorKind::kReduction);
      ASSERT_EQ(got.dtype(), want.dtype());
      ExpectSame(got, want, tolerance);
      ExpectSame(local.grad(), LocalLogits(whole.grad(), world, 0), tolerance);
      if (world.group() == nullptr) {
        EXPECT_EQ(got.Item(), want.Item());
        EXPECT_EQ(local.grad().ToVector<double>(), whole.grad().ToVector<double>());
        return;
      }
      // A maximum and two sums per row, regardless of the vocabulary; backward is local.
      EXPECT_EQ(forward.calls(CollectiveKind::kAllReduce), 2);
      EXPECT_EQ(forward.bytes(CollectiveKind::kAllReduce), 3 * kRows * DTypeSize(got.dtype()));
      EXPECT_EQ(world.group()->traffic().total_calls(), 2);
    });
}

INSTANTIATE_TEST_SUITE_P(Worlds, VocabParallelTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values<int64_t>(24, 23, 5),
                                            ::testing::Values(DType::kF64, DType::kF32)));

// Perturbing the whole, replicated logits: every rank takes the same differences.
TEST(VocabParallelCrossEntropyTest, FiniteDifferences) {
  for (int size = 1; size <= 4; ++size) {
    RunRanks(size, [](comm::World& world) {
      constexpr int64_t kVocabSize = 10, kPadded = 12;
      const Tensor targets =
          Tensor::FromVector<int64_t>({0, 9, 5, kIgnore, 3, 7}, {2, 3}, world.context());
      const ops::VocabPart part{.first = world.rank() * (kPadded / world.size()),
                                .vocab_size = kVocabSize};
      ExpectGradients({RandomTensor({2, 3, kPadded}, "l", world.context())},
                      [&](const std::vector<Tensor>& in) {
                        return VocabParallelCrossEntropy(SplitLastDim(in[0], world.group()),
                                                         targets, part, world.group());
                      });
    });
  }
}

// Nothing overflows, and what is not a number stays so on every rank.
TEST(VocabParallelCrossEntropyTest, LargeMaskedAndNaNRows) {
  RunRanks(2, [](comm::World& world) {
    constexpr double kMasked = -INFINITY;
    const Tensor logits = Tensor::FromVector<double>({3e4, 0, 3e4, 0,                      //
                                                      kMasked, kMasked, -500, kMasked,     //
                                                      kMasked, kMasked, kMasked, kMasked,  //
                                                      1, 2, NAN, 3},
                                                     {4, 4}, world.context());
    const std::vector<double> want = {std::log(2.0), 0, NAN, NAN};
    for (int64_t row = 0; row < 4; ++row) {
      const Tensor own = logits.Slice(0, row, 1).Slice(1, 2 * world.rank(), 2).Contiguous();
      const Tensor target = Tensor::FromVector<int64_t>({row == 0 ? 0 : 2}, {1}, world.context());
      const Tensor loss = VocabParallelCrossEntropy(
          own, target, {.first = 2 * world.rank(), .vocab_size = 4}, world.group());
      ExpectClose(loss.ToVector<double>(), {want[static_cast<size_t>(row)]}, 1e-11);
    }
  });
}

TEST(VocabParallelCrossEntropyTest, AnIgnoredIdOfTheVocabulary) {
  RunRanks(2, [](comm::World& world) {
    const Tensor logits = RandomTensor({4, 6}, "l", world.context());
    const Tensor targets = Tensor::FromVector<int64_t>({0, 4, 0, 1}, {4}, world.context());
    const Tensor want = autograd::CrossEntropy(logits, targets, 0);
    const Tensor got = VocabParallelCrossEntropy(LocalLogits(logits, world, 0), targets,
                                                 PartOf(6, world), world.group(), 0);
    ExpectClose({got.Item()}, {want.Item()}, 1e-12);
  });
}

// On every rank alike, before anything is communicated: nobody waits for a peer that threw.
TEST(VocabParallelErrorsTest, IdsOutsideTheVocabulary) {
  RunRanks(2, [](comm::World& world) {
    const ops::VocabPart part = PartOf(5, world);  // rows 0 to 2, and 3, 4 and padding
    const Tensor table = RandomTensor({3, 2}, "t", world.context());
    for (int64_t id : {5, -1}) {
      const Tensor ids = Tensor::FromVector<int64_t>({id}, {1}, world.context());
      EXPECT_THROW(VocabParallelEmbedding(ids, table, part, world.group()), Error);
      EXPECT_THROW(VocabParallelCrossEntropy(RandomTensor({1, 3}, "l", world.context()), ids, part,
                                             world.group()),
                   Error);
    }
    EXPECT_EQ(world.group()->traffic().total_calls(), 0);
  });
}

}  // namespace vocab_parallel_test
}  // namespace apogee::nn::parallel
