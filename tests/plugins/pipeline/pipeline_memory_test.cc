// SPDX-License-Identifier: Apache-2.0

// Bytes that stages of a pipeline hold and send are those of the formulas in
// plugins/hybrid_parallel.h and plugins/pipeline/schedule.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <tuple>

#include "apogee/booster/booster.h"
#include "apogee/core/process_memory.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace pipeline_memory_test {

using comm::CollectiveKind;
using pipeline::PipelineOp;
using pipeline::PipelineShape;
using pipeline::ScheduleKind;
using testing::RunRanks;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// What the operating system gave this process from the model's construction to the end of boost.
int64_t ProcessPeakOfBoost(bool lazy) {
  const int64_t before = ReadProcessMemory()->own_bytes();
  std::atomic<int64_t> peak = 0;
  RunRanks(4, [&](comm::World& world) {
    nn::Mlp model({.sizes = std::vector<int64_t>(17, 1024)});
    if (lazy) {
      model.InitializeLazily(world.context(), {.seed = 1});
    } else {
      model.Initialize(world.context(), {.seed = 1});
    }
    optim::Sgd optimizer(model.Parameters(), {.lr = 1e-3});
    HybridParallelPlugin plugin(world, {}, {.pp_size = 4, .num_microbatches = 4});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    peak = ReadProcessMemory()->peak_own_bytes() - before;
  });
  return peak;
}

// First, for a process's peak never falls. The ranks are threads of it: their stages are the model,
// and each makes one value at a time.
TEST(PipelineMemoryTest, TheProcessNeedsStagesOnly) {
  if (kSanitized || !ReadProcessMemory().ok()) GTEST_SKIP();
  constexpr int64_t kLayer = 1024 * 1025 * 4, kModel = 16 * kLayer;
  constexpr int64_t kRest = 12 << 20;  // stacks, heaps, code's data
  EXPECT_LE(ProcessPeakOfBoost(true), kModel + 4 * kLayer + kRest);
  EXPECT_GE(ProcessPeakOfBoost(false), 4 * kModel);
}

constexpr int64_t kRows = 16, kDim = 32, kInner = 256, kLayersPerPart = 3;
constexpr int kStages = 4;

// Equal pieces: two layers with a ReLU between them.
class Layers : public nn::Chain {
 public:
  explicit Layers(int64_t pieces) {
    const nn::LinearOptions relu{.activation = Activation::kRelu};
    for (int64_t i = 0; i < pieces; ++i) {
      const std::string name = std::to_string(i);
      up_.push_back(Register("up" + name, std::make_shared<nn::Linear>(kDim, kInner, relu)));
      down_.push_back(Register("down" + name, std::make_shared<nn::Linear>(kInner, kDim)));
    }
  }

 protected:
  std::vector<nn::Piece> MakePieces() override {
    std::vector<nn::Piece> pieces;
    for (size_t i = 0; i < up_.size(); ++i) {
      nn::Module *up = up_[i].get(), *down = down_[i].get();
      pieces.push_back({.name = up_[i]->weight()->name(),
                        .modules = {up, down},
                        .forward = [=](const Tensor& x) { return (*down)((*up)(x)); }});
    }
    return pieces;
  }

 private:
  std::vector<std::shared_ptr<nn::Linear>> up_, down_;
};

constexpr int64_t kBoundary = 4 * kRows * kDim;  // between two stages, of a micro-batch
constexpr int64_t kInside = 4 * kRows * kInner;
// Of a chunk from forward to backward: each layer's input, what the ReLU was given, the output.
constexpr int64_t kForwardBytes = kLayersPerPart * (kBoundary + 2 * kInside) + kBoundary;
// And from there to the gradients of its weights: the same, and the gradients of both layers'
// outputs; but no longer what the chunk put out.
constexpr int64_t kDeferredBytes =
    kForwardBytes - kBoundary + kLayersPerPart * (kInside + kBoundary);

// The most that a stage's list of operations keeps, in the order in which it runs them.
int64_t MostBytes(const PipelineShape& shape, int stage) {
  const pipeline::PipelineSchedule schedule = pipeline::MakeSchedule(shape);
  int64_t kept = 0, most = 0;
  for (const PipelineOp& op : schedule[static_cast<size_t>(stage)]) {
    // The model's input is a part of the batch, which was there.
    const int64_t shared = shape.PartOf(stage, op.chunk) == 0 ? kBoundary : 0;
    const bool splits = shape.splits_backward();
    if (op.kind == PipelineOp::Kind::kForward) kept += kForwardBytes - shared;
    if (op.kind == PipelineOp::Kind::kBackward) {
      kept -= kForwardBytes - shared - (splits ? kDeferredBytes - shared : 0);
    }
    if (op.kind == PipelineOp::Kind::kWeights) kept -= kDeferredBytes - shared;
    most = std::max(most, kept);
  }
  return most;
}

// By stage.
std::vector<int64_t> MeasuredBytes(const PipelineShape& shape) {
  std::vector<int64_t> measured(kStages);
  RunRanks(kStages, [&](comm::World& world) {
    Layers model(kLayersPerPart * shape.num_parts());
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {.lr = 1e-3});
    HybridParallelPlugin plugin(world, {},
                                {.pp_size = kStages,
                                 .schedule = shape.kind,
                                 .num_model_chunks = shape.num_chunks,
                                 .num_microbatches = shape.num_micros});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    const int64_t samples = kRows * shape.num_micros;
    const data::Batch batch = {
        Tensor::Full({samples, kDim}, DType::kF32, 0.5, world.context()),
        Tensor::Full({samples}, DType::kI64, 3, world.context()),
    };
    MemoryLedger& ledger = world.context()->ledger();
    const int64_t before = ledger.live_bytes(MemoryCategory::kActivation);
    for (int step = 0; step < 2; ++step) {
      ledger.ResetPeaks();
      booster.execute_pipeline(batch, model, boosted.criterion, &boosted.optimizer);
      measured[static_cast<size_t>(world.rank())] =
          ledger.peak_bytes(MemoryCategory::kActivation) - before;
      EXPECT_EQ(ledger.live_bytes(MemoryCategory::kActivation), before) << "nothing stays";
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
  });
  return measured;
}

// Beside what the formulas count: a message that comes early and one that is going out; gradients
// on their way through the layers, of which zbv keeps, and counts, those that weights need.
int64_t PassingBytes(const PipelineShape& shape) {
  return shape.splits_backward() ? 2 * kInside + 6 * kBoundary : 2 * kInside + 3 * kBoundary;
}

TEST(PipelineMemoryTest, ActivationsAreTheSchedules) {
  for (const int micros : {4, 8}) {
    const PipelineShape shapes[] = {{ScheduleKind::k1F1B, kStages, 1, micros},
                                    {ScheduleKind::kInterleaved, kStages, 2, micros},
                                    {ScheduleKind::kZbv, kStages, 2, micros}};
    for (const PipelineShape& shape : shapes) {
      const std::vector<int64_t> measured = MeasuredBytes(shape);
      for (int s = 0; s < kStages; ++s) {
        const std::string what = std::string(Name(shape.kind)) + ", m " + std::to_string(micros) +
                                 ", stage " + std::to_string(s);
        const int64_t most = MostBytes(shape, s), got = measured[static_cast<size_t>(s)];
        const int64_t passing = PassingBytes(shape);
        EXPECT_GE(got, most) << what;
        EXPECT_LE(got, most + passing) << what;
        const int p = kStages, m = micros;
        if (shape.kind == ScheduleKind::k1F1B) {
          EXPECT_LE(got, std::min(p - s, m) * kForwardBytes + passing) << what;
        } else if (shape.kind == ScheduleKind::kInterleaved) {
          EXPECT_LE(got, std::min(2 * (p - s - 1) + p + 1, 2 * m) * kForwardBytes + passing)
              << what;
        } else {
          EXPECT_LE(got, 2 * p * kDeferredBytes + passing) << what;
        }
      }
    }
  }
}

// Every value is made on the ranks whose stage uses it, one after the other.
TEST(PipelineMemoryTest, ModelDataIsTheStages) {
  const std::map<ScheduleKind, int> chunks = {
      {ScheduleKind::k1F1B, 1}, {ScheduleKind::kInterleaved, 2}, {ScheduleKind::kZbv, 2}};
  for (const auto& [schedule, num_chunks] : chunks) {
    for (const int zero : {0, 1, 2}) {
      for (const bool lazy : {false, true}) {
        RunRanks(2 * kStages, [&, schedule = schedule](comm::World& world) {
          Layers model(2 * kStages);
          const nn::InitOptions seed{.seed = 1};
          lazy ? model.InitializeLazily(world.context(), seed)
               : model.Initialize(world.context(), seed);
          const auto whole = static_cast<double>(4 * model.num_parameters());
          optim::AdamW optimizer(model.Parameters(), {});
          HybridParallelPlugin plugin(world, {.bucket_bytes = 20000},
                                      {.pp_size = kStages,
                                       .stage = zero,
                                       .schedule = schedule,
                                       .num_microbatches = kStages});
          Booster booster(plugin);
          Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
          const MemoryLedger& ledger = world.context()->ledger();
          const auto expect = [&](const char* what, int64_t got, double want) {
            EXPECT_NEAR(static_cast<double>(got) / want, 1, 0.05)
                << what << ": " << Name(schedule) << ", zero " << zero << ", lazy " << lazy;
          };
          const double stage = whole / kStages, copies = 2;
          expect("values", ledger.live_bytes(MemoryCategory::kParameter), stage);
          constexpr int64_t kLargest = 4 * (kDim + 1) * kInner;  // of the layers, one in passing
          if (lazy) {
            EXPECT_LE(ledger.peak_bytes(MemoryCategory::kParameter),
                      ledger.live_bytes(MemoryCategory::kParameter) + kLargest);
          }
          const data::Batch batch = {
              Tensor::Full({kRows, kDim}, DType::kF32, 0.5, world.context()),
              Tensor::Full({kRows}, DType::kI64, 3, world.context()),
          };
          booster.execute_pipeline(batch, model, boosted.criterion, &boosted.optimizer);
          expect("gradients", ledger.live_bytes(MemoryCategory::kGradient),
                 stage / (zero == 2 ? copies : 1));
          boosted.optimizer.step();
          boosted.optimizer.zero_grad();
          expect("states", ledger.live_bytes(MemoryCategory::kOptimizerState),
                 2 * stage / (zero > 0 ? copies : 1));
          EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 0);
          expect("values", ledger.live_bytes(MemoryCategory::kParameter), stage);
        });
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

}  // namespace pipeline_memory_test
}  // namespace apogee
