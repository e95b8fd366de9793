// SPDX-License-Identifier: Apache-2.0

// GraphedMicroStep: training with replayed micro-steps is training with eager ones, bit for bit;
// what a graph cannot do is refused, and training goes on.
#include "apogee/booster/graphed_step.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/recompute.h"
#include "apogee/comm/launch.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tests/booster/graphed_run.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace graphed_step_test {

using ::apogee::testing::MessageOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(GraphedStepTest, Gpt2TrainsAsEagerly) {
  ExpectTheSame([] { return MakeGpt2(); }, TokenBatch, nn::CrossEntropyLoss());
}
TEST_F(GraphedStepTest, Gpt2TrainsAsEagerlyWithRecompute) {
  ExpectTheSame([] { return MakeGpt2(/*recompute=*/true); }, TokenBatch, nn::CrossEntropyLoss());
}
TEST_F(GraphedStepTest, MlpTrainsAsEagerly) {
  ExpectTheSame(MakeMlp, ClassBatch, nn::CrossEntropyLoss());
}
// A mean's backward spreads a number that is on the GPU.
TEST_F(GraphedStepTest, MlpTrainsAsEagerlyToAMeanOfSquares) {
  ExpectTheSame(MakeMlp, ClassBatch, [](const Tensor& output, const Tensor&) {
    return autograd::Mean(autograd::Mul(output, output));
  });
}

TEST_F(GraphedStepTest, UnderAccumulateAsEagerly) {
  Training eager(gpu_, MakeMlp, Precision::kF32), graphed(gpu_, MakeMlp, Precision::kF32);
  graphed.UseGraphs();
  for (Training* run : {&eager, &graphed}) {
    const Accumulation window = run->booster.accumulate(3);
    for (int64_t micro = 0; micro < 12; ++micro) {
      run->MicroStep(ClassBatch(micro, 2), 1);
      EXPECT_EQ(window.is_complete(), micro % 3 == 2);
      if (!window.is_complete()) continue;
      run->Note(window.loss());
      run->Step();
    }
  }
  EXPECT_GT(graphed.graphed->num_replayed(), 0);
  EXPECT_EQ(eager.notes, graphed.notes);
}

TEST_F(GraphedStepTest, RefusesAnOptimizerThatBoostDidNotReturn) {
  Training run(gpu_, MakeMlp, Precision::kF32);
  optim::AdamW other(run.model->Parameters(), {.lr = 1e-2});
  GraphedMicroStep steps(run.booster, run.boosted->model, run.boosted->criterion, other);
  EXPECT_THAT(MessageOf([&] { steps.Run(ClassBatch(1, 2)); }),
              HasSubstr("is not the adamw that boost returned"));
}

TEST_F(GraphedStepTest, ALossIsTheCallersOwn) {
  Training run(gpu_, MakeMlp, Precision::kF32);
  run.UseGraphs();
  std::vector<Tensor> losses;
  std::vector<double> read;
  for (int64_t i = 0; i < 5; ++i) {
    losses.push_back(run.MicroStep(ClassBatch(i, 2), 1));
    read.push_back(losses.back().Item());
    run.boosted->optimizer.zero_grad();
  }
  EXPECT_EQ(run.graphed->num_replayed(), 3);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(losses[i].Item(), read[i]);
  EXPECT_NE(read[3], read[4]);
}

TEST_F(GraphedStepTest, AWrongTokenIsTheSameErrorAndNothingHasChanged) {
  Training eager(
      gpu_, [] { return MakeGpt2(); }, Precision::kF32),
      graphed(
          gpu_, [] { return MakeGpt2(); }, Precision::kF32);
  graphed.UseGraphs();
  data::Batch wrong_input = TokenBatch(50, 2), wrong_target = TokenBatch(51, 2);
  wrong_input.inputs.data<int64_t>()[7] = kVocab;
  wrong_target.targets.data<int64_t>()[3] = -1;
  for (int64_t i = 0; i < 4; ++i) {
    // Before the eager run, the capture and two replays.
    for (const data::Batch& wrong : {wrong_input, OnGpu(wrong_input), wrong_target}) {
      EXPECT_EQ(MessageOf([&] { graphed.MicroStep(wrong); }),
                MessageOf([&] { eager.MicroStep(wrong); }));
    }
    for (Training* run : {&eager, &graphed}) {
      run->Note(run->MicroStep(TokenBatch(i, 2)));
      run->Step();
    }
  }
  EXPECT_THAT(MessageOf([&] { graphed.MicroStep(wrong_input); }),
              HasSubstr("embedding: index 19 at position 7 is outside [0, 19)"));
  EXPECT_THAT(MessageOf([&] { graphed.MicroStep(wrong_target); }),
              HasSubstr("cross_entropy: index -1 at position 3 is outside [0, 19)"));
  EXPECT_EQ(eager.notes, graphed.notes);
  EXPECT_GE(graphed.graphed->num_replayed(), 2);
}

TEST_F(GraphedStepTest, IgnoredTargetsAsEagerly) {
  Training eager(
      gpu_, [] { return MakeGpt2(); }, Precision::kF32),
      graphed(
          gpu_, [] { return MakeGpt2(); }, Precision::kF32);
  graphed.UseGraphs({.max_graphs = 2});
  for (const int64_t ignored : {0, 0, 3, 0, 3, 5, 3}) {
    const int64_t seed = static_cast<int64_t>(eager.notes.size());
    const data::Batch batch = TokenBatch(seed, 2);
    for (int64_t i = 0; i < ignored; ++i) batch.targets.data<int64_t>()[i + seed % 2] = -100;
    for (Training* run : {&eager, &graphed}) {
      run->Note(run->MicroStep(batch));
      run->Step();
    }
  }
  EXPECT_EQ(eager.notes, graphed.notes);
  EXPECT_EQ(graphed.graphed->num_captured(), 3);
  EXPECT_EQ(graphed.graphed->num_replayed(), 3);
}

TEST_F(GraphedStepTest, WhatChangesInBetweenIsTakenUp) {
  Training eager(gpu_, MakeMlp, Precision::kF32), graphed(gpu_, MakeMlp, Precision::kF32);
  graphed.UseGraphs();
  for (Training* run : {&eager, &graphed}) {
    int64_t seed = 0;
    const auto steps = [&](double factor = 0.5) {
      for (int i = 0; i < 3; ++i) {
        run->Note(run->MicroStep(ClassBatch(++seed, 2), factor));
        run->Step();
      }
    };
    const auto parameter = run->model->Parameters()[0];
    steps();
    steps(0.25);
    parameter->set_requires_grad(false);
    steps();
    parameter->set_requires_grad(true);
    parameter->set_value(parameter->data().Clone(MemoryCategory::kParameter));
    steps();
    // Gradients that lie elsewhere each time.
    std::vector<Tensor> earlier;
    for (int i = 0; i < 4; ++i) {
      run->MicroStep(ClassBatch(++seed, 2));
      earlier.push_back(parameter->grad().Clone());
      parameter->set_grad(earlier.back());
      run->Note(run->MicroStep(ClassBatch(++seed, 2)));
      run->Step();
    }
    // A gradient of somebody else's making.
    parameter->set_grad(Tensor::Full(parameter->shape(), DType::kF32, 3, gpu_));
    steps();
  }
  EXPECT_EQ(eager.notes, graphed.notes);
  EXPECT_GT(graphed.graphed->num_replayed(), 3);
}

TEST_F(GraphedStepTest, ItsMemoryIsCountedAndGivenBack) {
  Training run(
      gpu_, [] { return MakeGpt2(); }, Precision::kF32);
  run.MicroStep(TokenBatch(0, 2));
  run.Step();
  gpu_->Synchronize();
  gpu_->allocator().ReleaseCache();
  const MemoryLedger& ledger = gpu_->ledger();
  const int64_t live = ledger.live_total_bytes(), slack = ledger.slack_bytes();
  run.UseGraphs();
  for (int64_t i = 0; i < 4; ++i) {
    run.MicroStep(TokenBatch(2 * i, 2));
    run.MicroStep(TokenBatch(2 * i + 1, 2));
    run.Step();
  }
  EXPECT_EQ(run.graphed->num_replayed(), 4);
  gpu_->allocator().ReleaseCache();
  EXPECT_GT(ledger.live_total_bytes(), live) << "gradients that are absent keep their place";
  EXPECT_GT(ledger.slack_bytes(), slack) << "activations";
  run.graphed = nullptr;
  gpu_->allocator().ReleaseCache();
  EXPECT_EQ(ledger.live_total_bytes(), live);
  EXPECT_EQ(ledger.slack_bytes(), slack);
}

TEST_F(GraphedStepTest, GradientsOutliveTheGraphs) {
  Training eager(gpu_, MakeMlp, Precision::kF32), graphed(gpu_, MakeMlp, Precision::kF32);
  graphed.UseGraphs();
  for (Training* run : {&eager, &graphed}) {
    for (int64_t i = 0; i < 3; ++i) {
      run->boosted->optimizer.zero_grad();
      run->Note(run->MicroStep(ClassBatch(i, 2)));
    }
    run->graphed = nullptr;
    for (int i = 0; i < 8; ++i) Tensor::Full({kWidth, 16}, DType::kF32, 99, gpu_);
    run->Note(run->MicroStep(ClassBatch(9, 2)));
  }
  EXPECT_EQ(eager.notes, graphed.notes);
}

TEST_F(GraphedStepTest, RefusesToWriteOverAGradientThatSomebodyKeeps) {
  Training run(gpu_, MakeMlp, Precision::kF32);
  run.UseGraphs();
  for (int64_t i = 0; i < 3; ++i) {
    run.MicroStep(ClassBatch(i, 2));
    run.Step();
  }
  run.MicroStep(ClassBatch(3, 2));
  Tensor kept = run.model->Parameters()[0]->grad();
  const std::vector<float> values = kept.ToVector<float>();
  run.Step();
  EXPECT_THAT(MessageOf([&] { run.MicroStep(ClassBatch(4, 2)); }),
              AllOf(HasSubstr("the gradient of \"layers.0.weight\" would overwrite an earlier "
                              "gradient"),
                    HasSubstr("Clone()")));
  EXPECT_EQ(kept.ToVector<float>(), values);
  kept = Tensor();
  run.MicroStep(ClassBatch(4, 2));
}

TEST_F(GraphedStepTest, AHostReadIsRefusedAndTrainingGoesOnEagerly) {
  const Criterion criterion = [](const Tensor& output, const Tensor& targets) {
    const Tensor loss = nn::CrossEntropyLoss()(output, targets);
    return autograd::Scale(loss, loss.Detach().Item() > 1e9 ? 0 : 1);
  };
  Training eager(gpu_, MakeMlp, Precision::kF32, criterion),
      graphed(gpu_, MakeMlp, Precision::kF32, criterion);
  graphed.UseGraphs();
  for (Training* run : {&eager, &graphed}) {
    run->Note(run->MicroStep(ClassBatch(0, 2)));
    run->Step();
    if (run == &graphed) {
      EXPECT_THAT(MessageOf([&] { run->MicroStep(ClassBatch(1, 2)); }),
                  HasSubstr("Item: reads values on the host while a CUDA graph is captured"));
      for (const auto& parameter : run->model->Parameters()) EXPECT_FALSE(parameter->has_grad());
    }
    for (int64_t i = 1; i < 3; ++i) run->Note(run->Eager(ClassBatch(i, 2), 0.5));
    run->Step();
    run->Note(run->Eager(ClassBatch(4, 2), 0.5));
  }
  EXPECT_EQ(eager.notes, graphed.notes);
}

// The gradients of the last layer have been given out by then.
TEST_F(GraphedStepTest, AHostReadWithinBackwardLeavesNoGradients) {
  Training eager(gpu_, MakeMlp, Precision::kF32), graphed(gpu_, MakeMlp, Precision::kF32);
  for (Training* run : {&eager, &graphed}) {
    int calls = 0;
    run->model->Modules()[1]->WrapForward(
        [&calls](const Tensor& x, const nn::Module::ForwardFunction& forward) {
          const auto fn = [&calls, forward](const Tensor& from) {
            if (++calls % 2 == 0) from.ToVector<float>();
            return forward(from);
          };
          return autograd::Recompute(fn, x);
        });
    if (run == &graphed) run->UseGraphs();
    run->Note(run->MicroStep(ClassBatch(0, 2)));
    run->Step();
    if (run == &graphed) {
      EXPECT_THAT(MessageOf([&] { run->MicroStep(ClassBatch(1, 2)); }),
                  HasSubstr("ToVector: reads values on the host"));
      for (const auto& parameter : run->model->Parameters()) EXPECT_FALSE(parameter->has_grad());
    }
    run->Note(run->Eager(ClassBatch(1, 2), 0.5));
    run->Step();
    run->Note(run->Eager(ClassBatch(2, 2), 0.5));
  }
  EXPECT_EQ(eager.notes, graphed.notes);
}

// What a module draws by itself is refused in the capture, and its generator is where it was.
TEST_F(GraphedStepTest, RandomNumbersThatAreRefusedWereNotDrawn) {
  Training run(gpu_, MakeMlp, Precision::kF32);
  nn::Module& model = *run.model;
  model.WrapForward([&model](const Tensor& x, const nn::Module::ForwardFunction& forward) {
    return autograd::Dropout(forward(x), 0.5, model.generator());
  });
  run.UseGraphs();
  run.MicroStep(ClassBatch(0, 2));
  run.Step();
  const uint64_t next = model.generator().next_stream();
  EXPECT_THAT(MessageOf([&] { run.MicroStep(ClassBatch(1, 2)); }),
              HasSubstr("dropout: draws random numbers"));
  EXPECT_EQ(model.generator().next_stream(), next);
}

TEST_F(GraphedStepTest, RefusesWhatAReplayWouldLeaveOut) {
  const auto message = [](Training& run) { return MessageOf([&] { run.UseGraphs(); }); };
  {
    Training run(CpuContext(), MakeMlp, Precision::kF32);
    EXPECT_THAT(message(run), HasSubstr("the model is on cpu, which has no graphs"));
  }
  {
    Training run(
        gpu_, [] { return MakeGpt2(false, 0.1); }, Precision::kF32);
    EXPECT_THAT(message(run),
                HasSubstr("the module \"transformer.drop\" drops elements at random"));
    run.model->Train(false);
    EXPECT_EQ(message(run), "nothing was thrown");
    run.model->Train();
    EXPECT_THAT(MessageOf([&] { run.MicroStep(TokenBatch(0, 2)); }), HasSubstr("at random"));
  }
  {
    Training run(gpu_, MakeMlp, Precision::kF32);
    run.model->Modules()[1]->AddPostForwardHook([](nn::Module&) {});
    EXPECT_THAT(message(run), HasSubstr("the module \"layers.0\" has hooks"));
  }
  {
    Training run(
        gpu_, [] { return MakeGpt2(false, 0); }, Precision::kF32);
    run.UseGraphs();
    const Tensor starts = Tensor::Zeros({2, 4}, DType::kI64, gpu_);
    const autograd::DocumentsGuard guard(std::make_shared<autograd::Documents>(starts));
    EXPECT_THAT(MessageOf([&] { run.MicroStep(TokenBatch(0, 2)); }),
                HasSubstr("run packed documents eagerly"));
  }
  {
    Training run(gpu_, MakeMlp, Precision::kF32);
    run.UseGraphs();
    run.model->Parameters()[1]->AddGradHook([](autograd::Parameter&) {});
    EXPECT_THAT(MessageOf([&] { run.MicroStep(ClassBatch(0, 2)); }),
                HasSubstr("the parameter \"layers.0.bias\" has hooks on its gradient"));
  }
  {
    Training run(gpu_, MakeMlp, Precision::kF32, nullptr);
    EXPECT_THAT(message(run), HasSubstr("needs a criterion"));
  }
  {
    Training run(gpu_, MakeMlp, Precision::kF32);
    EXPECT_THAT(MessageOf([&] { run.UseGraphs({.max_graphs = 0}); }),
                HasSubstr("max_graphs must be at least 1, got 0"));
    run.UseGraphs();
    const autograd::NoGradGuard no_grad;
    EXPECT_THAT(MessageOf([&] { run.MicroStep(ClassBatch(0, 2)); }),
                HasSubstr("gradients are switched off"));
    EXPECT_THAT(MessageOf([&] { run.MicroStep({}); }), HasSubstr("needs inputs and targets"));
  }
  {
    const std::unique_ptr<nn::Module> model = MakeMlp();
    model->Initialize(gpu_);
    optim::AdamW optimizer(model->Parameters(), {});
    DdpPlugin plugin(nullptr);
    Booster booster(plugin);
    std::ignore = booster.boost(*model, optimizer);
    EXPECT_THAT(
        MessageOf([&] { GraphedMicroStep(booster, *model, nn::CrossEntropyLoss(), optimizer); }),
        HasSubstr("the plugin is ddp, whose backward does more than kernels"));
  }
  {
    const std::unique_ptr<nn::Module> model = MakeMlp();
    model->Initialize(gpu_);
    optim::Lomo optimizer(model->Parameters(), {.lr = 1e-2});
    SingleRankPlugin plugin;
    Booster booster(plugin);
    std::ignore = booster.boost(*model, optimizer);
    EXPECT_THAT(
        MessageOf([&] { GraphedMicroStep(booster, *model, nn::CrossEntropyLoss(), optimizer); }),
        HasSubstr("the optimizer lomo updates parameters inside backward"));
  }
}

TEST_F(GraphedStepTest, ACollectiveIsNoPartOfAGraph) {
  const auto rank = [](comm::World& world) {
    const Tensor x = Tensor::Full({4}, DType::kF32, world.rank() + 1, world.context());
    EXPECT_THAT(MessageOf([&] {
                  CudaGraph::Capture(world.context(), {},
                                     [&](const auto&) { world.group()->AllReduce(x); });
                }),
                HasSubstr("all_reduce: a collective cannot be part of a CUDA graph"));
    world.group()->AllReduce(x);
    EXPECT_EQ(x.ToVector<float>(), std::vector<float>(4, 3));
  };
  const absl::Status status = comm::launch({.num_ranks = 2, .device = "cuda"}, rank);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace graphed_step_test
}  // namespace apogee
