// SPDX-License-Identifier: Apache-2.0

// A boosted run computes what the plain loop computes; bf16 keeps fp32 masters; misuse is refused.
#include "apogee/booster/booster.h"

#include <gtest/gtest.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/grad_check.h"

namespace apogee {
namespace booster_test {

constexpr int64_t kVocab = 19, kTokens = 6;

class BoosterTest : public ::testing::Test {
 protected:
  struct Setup {
    explicit Setup(const ContextPtr& context, DType dtype = DType::kF32)
        : model({.vocab_size = kVocab, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3}) {
      model.Initialize(context, {.seed = 4, .dtype = dtype});
    }
    nn::Gpt2 model;
    std::unique_ptr<optim::AdamW> optimizer;
    void MakeOptimizer() {
      optimizer = std::make_unique<optim::AdamW>(
          model.Parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    }
  };

  // `rows` samples from `first` of a fixed stream.
  Tensor Tokens(int64_t step, int64_t first, int64_t rows, int64_t shift) {
    std::vector<int64_t> values;
    for (int64_t i = first; i < first + rows; ++i) {
      for (int64_t t = 0; t < kTokens; ++t) {
        values.push_back(static_cast<int64_t>(
            Philox(MakeKey(7, "tokens"),
                   static_cast<uint64_t>((step * 64 + i) * 64 + t + shift))[0] %
            kVocab));
      }
    }
    return Tensor::FromVector<int64_t>(values, {rows, kTokens}, context_);
  }
  Tensor Loss(nn::Module& model, int64_t step, int64_t first, int64_t rows) {
    return criterion_(model(Tokens(step, first, rows, 0)), Tokens(step, first, rows, 1));
  }
  static std::vector<std::vector<double>> Values(const nn::Module& model) {
    std::vector<std::vector<double>> values;
    for (const auto& p : model.Parameters()) values.push_back(p->data().ToVector<double>());
    return values;
  }
  // Largest error of the update of any parameter, relative to the update.
  static double UpdateError(const std::vector<std::vector<double>>& start,
                            const std::vector<std::vector<double>>& want,
                            const std::vector<std::vector<double>>& got) {
    double worst = 0;
    for (size_t p = 0; p < want.size(); ++p) {
      double error = 0, update = 0;
      for (size_t i = 0; i < want[p].size(); ++i) {
        error += (got[p][i] - want[p][i]) * (got[p][i] - want[p][i]);
        update += (want[p][i] - start[p][i]) * (want[p][i] - start[p][i]);
      }
      worst = std::max(worst, std::sqrt(error / update));
    }
    return worst;
  }

  ContextPtr context_ = CpuContext();
  nn::CrossEntropyLoss criterion_;
};

TEST_F(BoosterTest, BoostedLoopEqualsThePlainLoopBitForBit) {
  Setup plain(context_), boosted_setup(context_);
  plain.MakeOptimizer();
  boosted_setup.MakeOptimizer();
  SingleRankPlugin plugin({.precision = Precision::kF32});
  Booster booster(plugin);
  auto boosted =
      booster.boost(boosted_setup.model, *boosted_setup.optimizer, {.criterion = criterion_});
  for (int64_t step = 0; step < 10; ++step) {
    autograd::Backward(Loss(plain.model, step, 0, 4));
    plain.optimizer->step();
    plain.optimizer->zero_grad();
    booster.backward(boosted.criterion(boosted.model(Tokens(step, 0, 4, 0)), Tokens(step, 0, 4, 1)),
                     boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  EXPECT_EQ(Values(plain.model), Values(boosted_setup.model));
}

// Micro-batches whose losses the caller divides give the update of the whole batch, also in a short
// last window. f64: a wrong factor cannot hide behind rounding.
TEST_F(BoosterTest, AccumulationEqualsTheWholeBatch) {
  Setup whole(context_, DType::kF64), parts(context_, DType::kF64);
  whole.MakeOptimizer();
  parts.MakeOptimizer();
  const auto start = Values(whole.model);
  SingleRankPlugin plugin({.precision = Precision::kF64, .max_norm = 0.5});
  SingleRankPlugin parts_plugin({.precision = Precision::kF64, .max_norm = 0.5});
  Booster whole_booster(plugin), parts_booster(parts_plugin);
  std::ignore = whole_booster.boost(whole.model, *whole.optimizer);
  std::ignore = parts_booster.boost(parts.model, *parts.optimizer);
  for (int64_t step = 0; step < 8; ++step) {
    const int64_t micro = step == 7 ? 2 : 3;  // the last window is short
    whole_booster.backward(Loss(whole.model, step, 0, 2 * micro), *whole.optimizer);
    for (int64_t k = 0; k < micro; ++k) {
      const Tensor loss = Loss(parts.model, step, 2 * k, 2);
      parts_booster.backward(autograd::Scale(loss, 1.0 / static_cast<double>(micro)),
                             *parts.optimizer);
    }
    for (Setup* setup : {&whole, &parts}) {
      setup->optimizer->step();
      setup->optimizer->zero_grad();
    }
  }
  EXPECT_LT(UpdateError(start, Values(whole.model), Values(parts.model)), 1e-9);
}

// An optimizer that updates inside backward: the same loop, nothing left for step() but the report.
TEST_F(BoosterTest, DrivesAFusedBackward) {
  Setup plain(context_), boosted_setup(context_);
  optim::Lomo expected(plain.model.Parameters(), {.lr = 0.1});
  optim::Lomo optimizer(boosted_setup.model.Parameters(), {.lr = 0.1});
  expected.set_step_options({.max_norm = 0.5});
  SingleRankPlugin plugin({.max_norm = 0.5});
  Booster booster(plugin);
  auto boosted = booster.boost(boosted_setup.model, optimizer, {.criterion = criterion_});
  for (int64_t step = 0; step < 4; ++step) {
    autograd::Backward(Loss(plain.model, step, 0, 4));
    expected.step();
    expected.zero_grad();
    booster.backward(Loss(boosted.model, step, 0, 4), boosted.optimizer);
    for (const auto& p : boosted.model.Parameters()) EXPECT_FALSE(p->has_grad());
    if (step == 0) {
      EXPECT_THROW(booster.backward(Loss(boosted.model, step, 0, 4), boosted.optimizer), Error);
    }
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    EXPECT_NEAR(boosted.optimizer.last_step().grad_norm, expected.last_step().grad_norm, 1e-6);
  }
  EXPECT_LT(
      UpdateError(Values(Setup(context_).model), Values(plain.model), Values(boosted_setup.model)),
      1e-6);
}

TEST_F(BoosterTest, Bf16KeepsMastersAndF32Gradients) {
  Setup setup(context_);
  setup.MakeOptimizer();
  const auto before = Values(setup.model);
  SingleRankPlugin plugin({.precision = Precision::kBf16});
  Booster booster(plugin);
  std::ignore = booster.boost(setup.model, *setup.optimizer);
  size_t p = 0;
  for (optim::ParamView& view : setup.optimizer->views()) {
    EXPECT_EQ(view.value().dtype(), DType::kBF16);
    EXPECT_EQ(view.master().ToVector<double>(), before[p++]) << view.name();
  }
  booster.backward(Loss(setup.model, 0, 0, 4), *setup.optimizer);
  for (const auto& parameter : setup.model.Parameters()) {
    EXPECT_EQ(parameter->grad().dtype(), DType::kF32) << parameter->name();
  }
  setup.optimizer->step();
  for (optim::ParamView& view : setup.optimizer->views()) {
    EXPECT_EQ(view.value().ToVector<double>(), view.master().To(DType::kBF16).ToVector<double>());
  }
}

// Updates far below bf16's resolution add up in the masters.
TEST_F(BoosterTest, Bf16TrainsWithTinyLearningRates) {
  nn::Mlp model({.sizes = {4, 3}});
  model.Initialize(context_, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 1e-5, .weight_decay = 0});
  SingleRankPlugin plugin({.precision = Precision::kBf16});
  Booster booster(plugin);
  std::ignore = booster.boost(model, optimizer);
  const std::vector<double> start = optimizer.views()[0].master().ToVector<double>();
  const Tensor x = testing::RandomTensor({2, 4}, "x", context_, 1, DType::kBF16);
  for (int step = 0; step < 100; ++step) {
    booster.backward(autograd::Sum(model(x)), optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }
  const std::vector<double> end = optimizer.views()[0].master().ToVector<double>();
  for (size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(std::abs(end[i] - start[i]), 1e-3, 1e-4);
}

TEST_F(BoosterTest, MisuseIsRefusedBeforeAnythingChanges) {
  EXPECT_THROW(SingleRankPlugin({.precision = Precision::kFp16}), Error);
  EXPECT_THROW(SingleRankPlugin({.max_norm = -1}), Error);
  try {
    SingleRankPlugin plugin({.precision = Precision::kFp16, .max_norm = -1});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("fp16 needs a loss scale"), std::string::npos) << what;
    EXPECT_NE(what.find("max_norm"), std::string::npos) << what;
  }
  SingleRankPlugin plugin({.precision = Precision::kBf16});
  Booster booster(plugin);
  Setup setup(context_), other(context_);
  setup.MakeOptimizer();
  other.MakeOptimizer();
  EXPECT_THROW(booster.backward(Loss(setup.model, 0, 0, 1), *setup.optimizer),
               Error);                                                // before boost
  EXPECT_THROW(booster.boost(setup.model, *other.optimizer), Error);  // not its model
  autograd::Backward(Loss(setup.model, 0, 0, 1));
  EXPECT_THROW(std::ignore = booster.boost(setup.model, *setup.optimizer),
               Error);  // a gradient in another precision
  EXPECT_EQ(setup.model.Parameters()[0]->data().dtype(), DType::kF32);
  setup.optimizer->zero_grad();
  std::ignore = booster.boost(setup.model, *setup.optimizer);
  EXPECT_THROW(std::ignore = booster.boost(setup.model, *setup.optimizer), Error);  // twice
  nn::Mlp empty({.sizes = {2, 2}});
}

// Frozen and unused parameters do not move; a tied one moves once.
TEST_F(BoosterTest, FrozenParametersStay) {
  Setup setup(context_);
  setup.model.FindParameter("transformer.h.0.mlp.c_fc.weight")->set_requires_grad(false);
  setup.MakeOptimizer();
  const auto before = Values(setup.model);
  SingleRankPlugin plugin;
  Booster booster(plugin);
  std::ignore = booster.boost(setup.model, *setup.optimizer);
  booster.backward(Loss(setup.model, 0, 0, 4), *setup.optimizer);
  setup.optimizer->step();
  const auto after = Values(setup.model);
  const auto parameters = setup.model.Parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_EQ(after[p] == before[p], !parameters[p]->requires_grad()) << parameters[p]->name();
  }
}

}  // namespace booster_test
}  // namespace apogee
