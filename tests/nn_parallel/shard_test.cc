// SPDX-License-Identifier: Apache-2.0

// Cutting parameters: the local tensors make the whole again, and layouts say where elements are.
#include "apogee/nn/parallel/shard.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <numeric>

#include "apogee/core/error.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn::parallel {
namespace shard_test {

using ::testing::ElementsAre;

struct Case {
  TensorShard shard;
  Shape shape;
};

// Element i is i.
Tensor Numbered(const Shape& shape, const ContextPtr& context) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::FromVector(values, shape, context);
}

TEST(TensorShardTest, RoundTripAndLayout) {
  const ContextPtr context = CpuContext();
  const Case cases[] = {
      {{.dim = 0}, {24}},
      {{.dim = 0, .sections = 2}, {24}},
      {{.dim = 0}, {12, 5}},
      {{.dim = 1}, {5, 12}},
      {{.dim = -1, .sections = 3}, {5, 36}},
      {{.dim = 0, .sections = 3}, {36, 5}},
      {{.dim = 1}, {2, 12, 3}},
      {{.section_units = {24, 12, 12}}, {48}},
      {{.section_units = {24, 12, 12}}, {96, 5}},
      {{.dim = -1, .section_units = {12, 24}}, {5, 36}},
      {{.dim = 1, .section_units = {12, 24, 12}}, {2, 144, 3}},
      {{.dim = 0, .pad = true}, {13, 3}},
      {{.dim = 0, .pad = true}, {5, 3}},  // on four ranks the last one holds padding only
      {{.dim = 0, .pad = true}, {12, 3}},
      {{.dim = 0, .pad = true}, {7}},
  };
  for (const auto& [shard, shape] : cases) {
    const Tensor whole = Numbered(shape, context);
    for (int tp = 1; tp <= 4; ++tp) {
      std::vector<Tensor> locals;
      std::vector<int> held(static_cast<size_t>(shape.numel()), 0);
      for (int rank = 0; rank < tp; ++rank) {
        const Tensor local = CutLocal(shard, whole, rank, tp);
        ASSERT_EQ(local.shape(), LocalShape(shard, shape, tp));
        // The segments are the local tensor's elements, in its order, then zeros.
        const Layout layout = LayoutOf(shard, shape, rank, tp, 2);
        EXPECT_EQ(layout.logical_shape(), shape);
        EXPECT_EQ(layout.num_replicas(), 2);
        std::vector<double> want;
        for (const Segment& segment : layout.segments()) {
          for (int64_t i = 0; i < segment.length; ++i) {
            want.push_back(static_cast<double>(segment.begin + i));
            ++held[static_cast<size_t>(segment.begin + i)];
          }
        }
        want.resize(static_cast<size_t>(local.numel()), 0.0);
        EXPECT_EQ(local.ToVector<double>(), want) << shape << ", rank " << rank << " of " << tp;
        EXPECT_EQ(layout.is_whole(), tp == 1);
        locals.push_back(local);
      }
      EXPECT_THAT(held, ::testing::Each(1)) << shape << " on " << tp;
      EXPECT_EQ(Assemble(shard, shape, locals).ToVector<double>(), whole.ToVector<double>())
          << shape << " on " << tp;
    }
  }
}

// Known answers, which do not follow from one another.
TEST(TensorShardTest, Segments) {
  const auto segments = [](const TensorShard& shard, const Shape& shape, int rank, int tp) {
    const Layout layout = LayoutOf(shard, shape, rank, tp);
    return std::vector<Segment>(layout.segments().begin(), layout.segments().end());
  };
  EXPECT_THAT(segments({.dim = 0}, {4, 3}, 1, 2), ElementsAre(Segment{6, 6}));
  EXPECT_THAT(segments({.dim = 1}, {3, 4}, 1, 2),
              ElementsAre(Segment{2, 2}, Segment{6, 2}, Segment{10, 2}));
  EXPECT_THAT(segments({.dim = 1, .sections = 3}, {2, 6}, 0, 2),
              ElementsAre(Segment{0, 1}, Segment{2, 1}, Segment{4, 1}, Segment{6, 1}, Segment{8, 1},
                          Segment{10, 1}));
  EXPECT_THAT(segments({.dim = 0, .sections = 3}, {6}, 1, 2),
              ElementsAre(Segment{1, 1}, Segment{3, 1}, Segment{5, 1}));
  // 4, 2 and 2 units of one row of three, then of two columns.
  EXPECT_THAT(segments({.dim = 0, .section_units = {4, 2, 2}}, {8, 3}, 1, 2),
              ElementsAre(Segment{6, 6}, Segment{15, 3}, Segment{21, 3}));
  EXPECT_THAT(segments({.dim = 1, .section_units = {2, 4}}, {2, 12}, 0, 2),
              ElementsAre(Segment{0, 2}, Segment{4, 4}, Segment{12, 2}, Segment{16, 4}));
  EXPECT_THAT(segments({.dim = 0, .pad = true}, {5, 2}, 2, 3), ElementsAre(Segment{8, 2}));
  EXPECT_THAT(segments({.dim = 0, .pad = true}, {5, 2}, 3, 4), ElementsAre());
  EXPECT_THAT(segments({.dim = 1}, {3, 4}, 0, 1), ElementsAre(Segment{0, 12}));
  // Blocks of optimizer states of as many elements are not cut.
  EXPECT_EQ(LayoutOf({.dim = 0, .section_units = {8, 4, 12}}, {48, 3}, 0, 2).cut_multiple(), 12);
}

TEST(TensorShardTest, RefusesWhatDoesNotFit) {
  const ContextPtr context = CpuContext();
  const auto cut = [&](const TensorShard& shard, const Shape& shape, int rank, int tp) {
    return CutLocal(shard, Numbered(shape, context), rank, tp);
  };
  EXPECT_THROW(cut({.dim = 0}, {5, 4}, 0, 2), Error);                 // not divided
  EXPECT_THROW(cut({.dim = 1, .sections = 3}, {2, 8}, 0, 2), Error);  // no equal sections
  EXPECT_THROW(cut({.dim = 1, .sections = 3}, {2, 9}, 0, 2), Error);  // sections not divided
  EXPECT_THROW(cut({.dim = 1, .pad = true}, {2, 8}, 0, 2), Error);    // padding inside
  EXPECT_THROW(cut({.sections = 2, .pad = true}, {8}, 0, 2), Error);
  const auto refused = [&](const TensorShard& shard, const Shape& shape, const char* says) {
    EXPECT_THAT([&] { cut(shard, shape, 0, 2); }, testing::Says(::testing::HasSubstr(says)));
  };
  refused({.section_units = {4, 3, 3}}, {20}, "tp 2 does not divide each of the 4, 3, 3 units");
  refused({.section_units = {4, 2, 2}}, {20},
          "dim 0 of 20 does not consist of 4, 2, 2 equal units");
  refused({.section_units = {4, 0}}, {20}, "section_units are 4, 0, must be at least 1");
  refused({.pad = true, .section_units = {4, 2}}, {6}, "only dim 0 in one section can be padded");
  EXPECT_THROW(cut({.dim = 2}, {4, 4}, 0, 2), Error);
  EXPECT_THROW(cut({.dim = 0}, {4, 4}, 2, 2), Error);
  EXPECT_THROW(cut({.dim = 0}, {4, 4}, 0, 0), Error);
  EXPECT_THROW(LayoutOf({.dim = 0}, {4, 4}, -1, 2), Error);
  EXPECT_THROW(Assemble({.dim = 0}, {4, 4}, {}), Error);
  const std::vector<Tensor> wrong = {Numbered({2, 4}, context), Numbered({1, 4}, context)};
  EXPECT_THROW(Assemble({.dim = 0}, {4, 4}, wrong), Error);
}

}  // namespace shard_test
}  // namespace apogee::nn::parallel
