// SPDX-License-Identifier: Apache-2.0

// LOMO and AdaLomo on shards, inside backward, compute what one rank computes inside backward.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "apogee/autograd/functions/activation.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/tests/support/runs/fused_run.h"
#include "apogee/tests/support/runs/side_model.h"
#include "apogee/tests/support/runs/tiny_run.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace gemini_fused_test {

using testing::FusedSetup;
using testing::GeminiFused;
using testing::kTinyBatch;
using testing::PlainFused;
using testing::RunRanks;
using testing::SideModel;
using testing::TinyKind;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WorstUpdateError;

template <typename T>
class GeminiFusedTest : public ::testing::Test {};
using Optimizers = ::testing::Types<optim::Lomo, optim::AdaLomo>;
TYPED_TEST_SUITE(GeminiFusedTest, Optimizers);

// One walk, two walks, two walks that clip.
std::vector<FusedSetup> Walks(const FusedSetup& setup, double max_norm) {
  std::vector<FusedSetup> all(3, setup);
  all[1].two_walks = true;
  all[2].max_norm = max_norm;
  return all;
}

template <typename Optimizer>
void ExpectPlain(const FusedSetup& setup, const std::vector<int>& worlds, int parts = 1) {
  Weights start;
  const Weights want = PlainFused<Optimizer>(setup, &start, parts);
  EXPECT_NE(want, start);
  for (const int num_ranks : worlds) {
    const Weights got = GeminiFused<Optimizer>(setup, num_ranks, /*timeout_seconds=*/20);
    const auto worst = WorstUpdateError(start, want, got);
    EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, two walks "
                                 << setup.two_walks << ", max_norm " << setup.max_norm;
  }
}

// Tied, frozen, unused parameters, and one that some ranks use in some steps.
FusedSetup Tiny(TinyKind kind, DType dtype) {
  const TinyRunOptions options{.kind = kind};
  return {.make = [options] { return std::make_shared<TinyModel>(options); },
          .loss =
              [options](nn::Module& model, const ContextPtr& context, int64_t step, int rank,
                        int num_ranks) {
                const int64_t rows = kTinyBatch / num_ranks;
                return TinyLoss(model, context, options, step, rank * rows, rows);
              },
          .dtype = dtype};
}

// Llama: the gradient of a key's bias is rounding error, which AdaLomo normalises.
TYPED_TEST(GeminiFusedTest, EqualsOneRankInF64) {
  for (const int64_t chunk_bytes : {1, 1000}) {
    FusedSetup setup = Tiny(TinyKind::kLlama, DType::kF64);
    setup.chunk_bytes = chunk_bytes;
    for (const FusedSetup& walks : Walks(setup, 0.3)) ExpectPlain<TypeParam>(walks, {1, 2, 3, 4});
  }
}

// A weight of another module, a module called twice, odd shapes.
class Twice : public nn::Module {
 public:
  Twice()
      : in_(Register("in", std::make_shared<nn::Linear>(5, 7))),
        shared_(Register("shared", std::make_shared<nn::Linear>(7, 7))),
        middle_(Register("middle", std::make_shared<nn::Linear>(7, 7))),
        scale_(RegisterParameter("scale", {7}, nn::Init::Normal(1, 0.1))) {}
  Tensor Forward(const Tensor& x) override {
    Tensor y = (*shared_)(autograd::Mul((*in_)(x), scale_->value()));
    y = autograd::Mul((*shared_)((*middle_)(y)), scale_->value());
    return autograd::MatMul(y, in_->weight()->value());
  }

 private:
  std::shared_ptr<nn::Linear> in_, shared_, middle_;
  autograd::ParameterPtr scale_;
};

TYPED_TEST(GeminiFusedTest, TiedWeightsAndModulesCalledTwice) {
  const FusedSetup setup{
      .make = [] { return std::make_shared<Twice>(); },
      .loss =
          [](nn::Module& model, const ContextPtr& context, int64_t step, int rank, int) {
            std::vector<double> values(15);
            for (size_t i = 0; i < values.size(); ++i) {
              values[i] =
                  std::sin(static_cast<double>(step * 100 + rank * 20) + static_cast<double>(i));
            }
            const Tensor y = model(Tensor::FromVector<double>(values, {3, 5}, context));
            return autograd::Mean(autograd::Mul(y, y));
          },
      .chunk_bytes = 1 << 20};
  for (const FusedSetup& walks : Walks(setup, 0.01)) {
    for (const int num_ranks : {1, 2, 3}) ExpectPlain<TypeParam>(walks, {num_ranks}, num_ranks);
  }
}

// The second call's gradient is all that the weight gets, so the weight has moved when backward
// comes to the first call, which reads it without one: gathered again, it is what one rank reads.
class ReadTwice : public nn::Module {
 public:
  ReadTwice()
      : in_(Register("in", std::make_shared<nn::Linear>(7, 7))),
        cell_(Register("cell", std::make_shared<Cell>())) {}
  Tensor Forward(const Tensor& x) override {
    cell_->first = true;
    const Tensor y = (*cell_)((*in_)(x));
    cell_->first = false;
    return (*cell_)(y);
  }

 private:
  struct Cell : nn::Module {
    Cell() : weight(RegisterParameter("weight", {7, 7}, nn::Init::Normal(0, 0.5))) {}
    Tensor Forward(const Tensor& x) override {
      return autograd::MatMul(x, first ? weight->data() : weight->value());
    }
    autograd::ParameterPtr weight;
    bool first = false;
  };
  std::shared_ptr<nn::Linear> in_;
  std::shared_ptr<Cell> cell_;
};

TYPED_TEST(GeminiFusedTest, ValuesReadWithoutAGradient) {
  const FusedSetup setup{
      .make = [] { return std::make_shared<ReadTwice>(); },
      .loss =
          [](nn::Module& model, const ContextPtr& context, int64_t step, int rank, int) {
            const double sample = 0.2 + 0.1 * static_cast<double>(step + rank);
            const Tensor y = model(Tensor::Full({3, 7}, DType::kF64, sample, context));
            return autograd::Mean(autograd::Mul(y, y));
          }};
  for (const FusedSetup& walks : Walks(setup, 0.1)) {
    for (const int num_ranks : {1, 2, 3}) ExpectPlain<TypeParam>(walks, {num_ranks}, num_ranks);
  }
}

// Blocks whose forward runs again in backward gather there, between updates.
TYPED_TEST(GeminiFusedTest, RecomputedBlocks) {
  std::map<bool, Weights> got;
  for (const bool recompute : {false, true}) {
    const FusedSetup setup{
        .make =
            [recompute] {
              auto model = std::make_shared<nn::Gpt2>(nn::Gpt2Config{.vocab_size = 19,
                                                                     .n_positions = 8,
                                                                     .n_embd = 16,
                                                                     .n_layer = 3,
                                                                     .n_head = 4,
                                                                     .recompute = recompute});
              for (const auto& p : model->Parameters()) {
                if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
              }
              return model;
            },
        .loss =
            [](nn::Module& model, const ContextPtr& context, int64_t step, int rank, int) {
              std::vector<int64_t> ids;
              for (int64_t i = 0; i < 16; ++i) ids.push_back((i * i + 5 * rank + step) % 19);
              const Tensor tokens = Tensor::FromVector<int64_t>(ids, {2, 8}, context);
              return nn::CrossEntropyLoss()(model(tokens), tokens);
            },
        .steps = 3};
    for (const FusedSetup& walks : Walks(setup, 0.3)) {
      for (const int num_ranks : {1, 2}) ExpectPlain<TypeParam>(walks, {num_ranks}, num_ranks);
    }
    got[recompute] = GeminiFused<TypeParam>(setup, 2);
  }
  EXPECT_TRUE(got[true] == got[false]);
}

// A rank without the side's gradient completes its chunk last, while its peers go on.
TYPED_TEST(GeminiFusedTest, GradientsMissingOnSomeRanks) {
  const FusedSetup setup{
      .make = [] { return std::make_shared<SideModel>(); },
      .loss =
          [](nn::Module& model, const ContextPtr& context, int64_t step, int rank, int) {
            const bool used = step == 1 || (step != 4 && rank == 1);
            return autograd::Scale(
                static_cast<SideModel&>(model).Loss(context, 0.1 * (1 + rank), used), 0.01);
          },
      .steps = 6};
  for (const FusedSetup& walks : Walks(setup, 0.001)) ExpectPlain<TypeParam>(walks, {3}, 3);
}

// What one rank does without shards, bit for bit; on several, sums are added in another order.
TYPED_TEST(GeminiFusedTest, LowPrecisions) {
  const std::pair<Precision, DType> precisions[] = {{Precision::kF32, DType::kF32},
                                                    {Precision::kBf16, DType::kBF16},
                                                    {Precision::kFp16, DType::kF16}};
  for (const auto& [precision, dtype] : precisions) {
    FusedSetup setup = Tiny(TinyKind::kLlama, DType::kF32);
    setup.precision = precision;
    for (const FusedSetup& walks : Walks(setup, 0.3)) {
      Weights start, want;
      RunRanks(1, [&](comm::World& world) {
        const auto model = walks.make();
        model->Initialize(world.context(), {.seed = 11, .dtype = walks.dtype});
        start = testing::WeightsOf(*model);
        TypeParam optimizer(model->Parameters(), {.lr = 0.02, .weight_decay = 0.1});
        optimizer.set_step_options(walks.step_options());
        DdpPlugin plugin(nullptr, {.precision = walks.precision, .max_norm = walks.max_norm});
        Booster booster(plugin);
        std::ignore = booster.boost(*model, optimizer);
        for (int64_t step = 0; step < walks.steps; ++step) {
          booster.backward(walks.loss(*model, world.context(), step, 0, 1), optimizer);
          optimizer.step();
        }
        want = testing::WeightsOf(*model);
      });
      testing::ShareFromFirst(start);
      testing::ShareFromFirst(want);
      EXPECT_TRUE(GeminiFused<TypeParam>(walks, 1) == want) << Name(precision);
      for (const int num_ranks : {2, 3, 4}) {
        const auto worst = WorstUpdateError(start, want, GeminiFused<TypeParam>(walks, num_ranks));
        // Twice: the rounding of a weight counts more in its update.
        EXPECT_LE(worst.error, 2 * Tolerance(dtype, ErrorKind::kEndToEnd))
            << worst.name << ", " << Name(precision) << ", " << num_ranks << " ranks";
      }
    }
  }
}

// Sums over ranks are the same sums as where the update waits for step().
TEST(GeminiFusedLomoTest, HasTheBitsOfStageTwo) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kFp16}) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      FusedSetup setup = Tiny(num_ranks == 2 ? TinyKind::kGpt2 : TinyKind::kLlama, DType::kF32);
      setup.precision = precision;
      setup.two_walks = precision != Precision::kBf16;
      Weights want;
      RunRanks(num_ranks, [&](comm::World& world) {
        const auto model = setup.make();
        model->Initialize(world.context(), {.seed = 11, .dtype = setup.dtype});
        optim::Lomo optimizer(model->Parameters(), {.lr = 0.02, .weight_decay = 0.1});
        LowLevelZeroPlugin plugin(world.group(), {.precision = precision, .bucket_bytes = 3000});
        Booster booster(plugin);
        std::ignore = booster.boost(*model, optimizer);
        for (int64_t step = 0; step < setup.steps; ++step) {
          booster.backward(setup.loss(*model, world.context(), step, world.rank(), num_ranks),
                           optimizer);
          optimizer.step();
          optimizer.zero_grad();
        }
        if (world.rank() == 0) want = testing::WeightsOf(*model);
      });
      testing::ShareFromFirst(want);
      EXPECT_TRUE(GeminiFused<optim::Lomo>(setup, num_ranks) == want)
          << Name(precision) << ", " << num_ranks << " ranks";
    }
  }
}

}  // namespace gemini_fused_test
}  // namespace apogee
