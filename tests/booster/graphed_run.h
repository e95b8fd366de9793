// SPDX-License-Identifier: Apache-2.0

// Trainings with eager and with replayed micro-steps, and the fixture that compares them.
//
//   Training run(gpu_, MakeMlp, Precision::kF32);
//   run.UseGraphs();  // without it, eager
//   run.Note(run.MicroStep(ClassBatch(/*seed=*/0, /*rows=*/2)));
#ifndef APOGEE_TESTS_BOOSTER_GRAPHED_RUN_H_
#define APOGEE_TESTS_BOOSTER_GRAPHED_RUN_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/graphed_step.h"
#include "apogee/core/rng.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_context.h"

namespace apogee {
namespace graphed_step_test {

using MakeModel = std::function<std::unique_ptr<nn::Module>()>;
using MakeBatch = std::function<data::Batch(int64_t seed, int64_t rows)>;

inline constexpr int64_t kVocab = 19, kTokens = 6, kWidth = 5, kClasses = 4;

inline Tensor Numbers(int64_t seed, const char* name, const Shape& shape, int64_t below) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    values.push_back(
        Philox(MakeKey(static_cast<uint64_t>(seed), name), static_cast<uint64_t>(i))[0] %
        static_cast<uint64_t>(below));
  }
  return Tensor::FromVector<int64_t>(values, shape, CpuContext());
}

inline std::unique_ptr<nn::Module> MakeGpt2(bool recompute = false, double dropout = 0) {
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                   .n_positions = 8,
                                                   .n_embd = 12,
                                                   .n_layer = 2,
                                                   .n_head = 3,
                                                   .dropout = dropout,
                                                   .recompute = recompute});
}
inline data::Batch TokenBatch(int64_t seed, int64_t rows) {
  return {Numbers(seed, "inputs", {rows, kTokens}, kVocab),
          Numbers(seed, "targets", {rows, kTokens}, kVocab)};
}
inline std::unique_ptr<nn::Module> MakeMlp() {
  return std::make_unique<nn::Mlp>(nn::MlpConfig{.sizes = {kWidth, 16, kClasses}});
}
inline data::Batch ClassBatch(int64_t seed, int64_t rows) {
  std::vector<float> values;
  for (const int64_t number : Numbers(seed, "inputs", {rows, kWidth}, 64).ToVector<int64_t>()) {
    values.push_back(static_cast<float>(number) / 32 - 1);
  }
  return {Tensor::FromVector<float>(values, {rows, kWidth}, CpuContext()),
          Numbers(seed, "targets", {rows}, kClasses)};
}

// A training under way, eager or graphed.
struct Training {
  Training(const ContextPtr& context, const MakeModel& make, Precision precision,
           Criterion criterion = nn::CrossEntropyLoss())
      : model(make()), plugin({.precision = precision}), booster(plugin) {
    model->Initialize(context, {.seed = 4});
    optimizer = std::make_unique<optim::AdamW>(
        model->Parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    boosted.emplace(booster.boost(*model, *optimizer, {.criterion = std::move(criterion)}));
  }
  void UseGraphs(const GraphedMicroStepOptions& options = {}) {
    graphed = std::make_unique<GraphedMicroStep>(booster, boosted->model, boosted->criterion,
                                                 boosted->optimizer, options);
  }
  Tensor Eager(const data::Batch& batch, double factor) {
    const ContextPtr context = model->Parameters()[0]->context();
    const Tensor loss = autograd::Scale(
        boosted->criterion(boosted->model(batch.inputs.To(context)), batch.targets.To(context)),
        factor);
    booster.backward(loss, boosted->optimizer);
    return loss.Detach();
  }
  Tensor MicroStep(const data::Batch& batch, double factor = 0.5) {
    return graphed != nullptr ? graphed->Run(batch, factor) : Eager(batch, factor);
  }
  // The loss, and what is in the parameters and their gradients.
  void Note(const Tensor& loss) { Note(loss.Item()); }
  void Note(double loss) {
    notes.push_back({loss});
    for (const auto& parameter : model->Parameters()) {
      notes.push_back(parameter->data().ToVector<double>());
      notes.push_back(parameter->has_grad() ? parameter->grad().ToVector<double>()
                                            : std::vector<double>{});
    }
  }
  void Step(bool set_to_none = true) {
    boosted->optimizer.step();
    boosted->optimizer.zero_grad(set_to_none);
  }

  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::AdamW> optimizer;
  SingleRankPlugin plugin;
  Booster booster;
  std::optional<Boosted> boosted;
  std::unique_ptr<GraphedMicroStep> graphed;
  std::vector<std::vector<double>> notes;
};

class GraphedStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    gpu_ = ValueOrThrow(CudaContext());
  }
  data::Batch OnGpu(const data::Batch& batch) const {
    return {batch.inputs.To(gpu_), batch.targets.To(gpu_)};
  }
  // Six steps of two micro-batches, now on the host and now on the GPU, one of another shape in
  // between, and a step of one micro-batch alone.
  void Train(Training& run, const MakeBatch& make, bool set_to_none) const {
    std::vector<Tensor> losses;
    for (int64_t step = 0; step < 6; ++step) {
      for (int64_t micro = 0; micro < (step == 4 ? 1 : 2); ++micro) {
        data::Batch batch = make(10 * step + micro, step == 3 && micro == 1 ? 1 : 2);
        if (IsFloat(batch.inputs.dtype())) {
          batch.inputs = batch.inputs.To(run.model->Parameters()[0]->dtype());
        }
        losses.push_back(run.MicroStep(step % 2 == 0 ? batch : OnGpu(batch)));
        run.Note(losses.back());
      }
      run.Step(set_to_none);
    }
    for (const Tensor& loss : losses) run.notes.push_back({loss.Item()});
  }
  void ExpectTheSame(const MakeModel& model, const MakeBatch& batch, const Criterion& criterion) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      for (const bool set_to_none : {true, false}) {
        SCOPED_TRACE(std::string(Name(precision)) +
                     (set_to_none ? ", set to none" : ", set to zero"));
        Training eager(gpu_, model, precision, criterion),
            graphed(gpu_, model, precision, criterion);
        graphed.UseGraphs();
        Train(eager, batch, set_to_none);
        Train(graphed, batch, set_to_none);
        ASSERT_EQ(eager.notes.size(), graphed.notes.size());
        for (size_t i = 0; i < eager.notes.size(); ++i) {
          ASSERT_EQ(eager.notes[i], graphed.notes[i]) << "note " << i;
        }
        const GraphedMicroStep& steps = *graphed.graphed;
        EXPECT_EQ(steps.num_eager() + steps.num_captured() + steps.num_replayed(), 11);
        EXPECT_EQ(steps.num_eager(), 3) << "absent, present, the other shape";
        EXPECT_EQ(steps.num_captured(), set_to_none ? 2 : 1);
      }
    }
  }

  ContextPtr gpu_;
};

}  // namespace graphed_step_test
}  // namespace apogee

#endif  // APOGEE_TESTS_BOOSTER_GRAPHED_RUN_H_
