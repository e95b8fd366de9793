// SPDX-License-Identifier: Apache-2.0

// A run that resumes computes the bits of one that never stopped, and a checkpoint is the same one
// under every layout that writes or reads it.
#include "apogee/booster/training_state.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace training_state_test {

using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using apogee::testing::Weights;
using apogee::testing::WeightsOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 5, kVocab = 19;

// How a run is spread over ranks.
struct Spread {
  std::string plugin;  // single, ddp, zero1, zero2, or tp, whose stage is `zero`
  int ranks = 1;
  int tp = 1;
  int zero = 0;
  std::string name() const {
    return plugin + std::to_string(zero) + " tp" + std::to_string(tp) + " on " +
           std::to_string(ranks);
  }
};

std::unique_ptr<Plugin> Make(const Spread& spread, Precision precision, const comm::World& world) {
  constexpr int64_t kBucket = 3000;
  const optim::LossScalerOptions scaler{.initial_scale = 512, .growth_interval = 2};
  if (spread.plugin == "single") {
    return std::make_unique<SingleRankPlugin>(TrainingOptions{.precision = precision});
  }
  if (spread.plugin == "ddp") {
    return std::make_unique<DdpPlugin>(
        world.group(),
        TrainingOptions{.precision = precision, .bucket_bytes = kBucket, .loss_scaler = scaler});
  }
  if (spread.plugin == "tp") {
    return std::make_unique<HybridParallelPlugin>(
        world,
        TrainingOptions{.precision = precision, .bucket_bytes = kBucket, .loss_scaler = scaler},
        HybridParallelOptions{.tp_size = spread.tp, .stage = spread.zero});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(),
      TrainingOptions{.precision = precision, .bucket_bytes = kBucket, .loss_scaler = scaler},
      LowLevelZeroOptions{.stage = spread.plugin == "zero1" ? 1 : 2});
}

struct Choice {
  std::string optimizer = "adamw";
  Precision precision = Precision::kF32;
  int64_t accumulate = 1;
  int64_t batch() const { return 12 * accumulate; }  // 1 to 4 ranks share it
  std::string name() const {
    return optimizer + " " + Name(precision) + " accumulate " + std::to_string(accumulate);
  }
};

optim::OptionMap OptionsOf(const std::string& optimizer) {
  if (optimizer == "adamw8bit") return {{"min_8bit_size", "0"}, {"block_size", "64"}};
  if (optimizer.starts_with("galore")) {
    return {{"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}};
  }
  if (optimizer == "adafactor") return {{"beta1", "0.9"}};
  if (optimizer == "sgd") return {{"lr", "0.1"}, {"momentum", "0.9"}};
  return {};
}

// One rank's run: everything that a program would make.
class TrainingRun {
 public:
  TrainingRun(const Spread& spread, const Choice& choice, const comm::World& world,
              uint64_t seed = 1)
      : choice_(choice),
        world_(world),
        data_rank_(world.rank() / spread.tp),
        data_size_(world.size() / spread.tp),
        model_({.vocab_size = kVocab,
                .n_positions = kTokens,
                .n_embd = 24,
                .n_layer = 2,
                .n_head = 12,
                .dropout = 0.1}) {
    const DType dtype = choice.precision == Precision::kF64 ? DType::kF64 : DType::kF32;
    model_.Initialize(world.context(), {.seed = seed, .dtype = dtype});
    optimizer_ = ValueOrThrow(
        optim::MakeOptimizer(choice.optimizer, model_.Parameters(), OptionsOf(choice.optimizer)));
    scheduler_ = std::make_unique<optim::LrScheduler>(
        *optimizer_, ValueOrThrow(optim::MakeLrSchedule(
                         "cosine", {{"total_steps", "20"}, {"warmup_steps", "4"}})));
    plugin_ = Make(spread, choice.precision, world);
    booster_ = std::make_unique<Booster>(*plugin_);
    boosted_.emplace(booster_->boost(
        model_, *optimizer_, {.criterion = nn::CrossEntropyLoss(), .scheduler = scheduler_.get()}));
  }

  void Train(int64_t from, int64_t to) {
    const int64_t count = choice_.batch() / data_size_ / choice_.accumulate;
    const bool fused = choice_.optimizer == "lomo" || choice_.optimizer == "adalomo";
    for (int64_t step = from; step < to; ++step) {
      for (int64_t micro = 0; micro < choice_.accumulate; ++micro) {
        const int64_t first = (data_rank_ * choice_.accumulate + micro) * count;
        const Tensor loss = boosted_->criterion(boosted_->model(Tokens(step, first, count, 0)),
                                                Tokens(step, first, count, 1));
        booster_->backward(loss, *optimizer_);
      }
      optimizer_->step();
      if (!fused || optimizer_->last_step().num_updated >= 0) optimizer_->zero_grad();
      scheduler_->step();
    }
  }

  TrainingState state() {
    return TrainingState({.model = model_,
                          .optimizer = *optimizer_,
                          .scheduler = scheduler_.get(),
                          .plugin = *plugin_});
  }
  nn::Module& model() { return model_; }
  Plugin& plugin() { return *plugin_; }

 private:
  Tensor Tokens(int64_t step, int64_t first, int64_t count, int64_t shift) const {
    std::vector<int64_t> values;
    for (int64_t sample = first; sample < first + count; ++sample) {
      for (int64_t t = shift; t < kTokens + shift; ++t) {
        const auto place = static_cast<uint64_t>((step * choice_.batch() + sample) * 8 + t);
        values.push_back(static_cast<int64_t>(Philox(MakeKey(5, "tokens"), place)[0] % kVocab));
      }
    }
    return Tensor::FromVector<int64_t>(values, {count, kTokens}, world_.context());
  }

  Choice choice_;
  const comm::World& world_;
  int64_t data_rank_, data_size_;
  nn::Gpt2 model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LrScheduler> scheduler_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<Booster> booster_;
  std::optional<Boosted> boosted_;
};

using FilesPtr = std::shared_ptr<checkpoint::FileSystem>;
const FilesPtr& Files() { return checkpoint::RealFileSystem(); }

// All tensors of a checkpoint, whole, as bytes, and its attributes but for who wrote it.
std::map<std::string, std::string> ContentsOf(const std::string& path) {
  std::map<std::string, std::string> contents;
  const auto reader = ValueOrThrow(checkpoint::CheckpointReader::Open(Files(), path));
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Tensor whole =
        Tensor::Zeros(Shape(tensor.shape), *checkpoint::TensorDType(tensor.dtype), CpuContext());
    OkOrThrow(reader.Read(name, Layout(whole.shape()), whole));
    contents[name] = tensor.dtype + std::string(static_cast<const char*>(whole.raw()),
                                                static_cast<size_t>(whole.bytes()));
  }
  for (const auto& [name, value] : reader.attributes()) {
    if (name != "plugin" && name != "ranks") contents["attribute " + name] = value;
  }
  return contents;
}

void ExpectSame(const std::map<std::string, std::string>& a,
                const std::map<std::string, std::string>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, bytes] : a) {
    const auto found = b.find(name);
    ASSERT_NE(found, b.end()) << what << ": " << name;
    EXPECT_EQ(found->second, bytes) << what << ": " << name;
  }
}

// Six steps in one go, and three, a checkpoint, a new process' worth of objects, three more.
void ExpectResumes(const Spread& spread, const Choice& choice) {
  const SharedTempDir dir;
  const std::string half = dir / "half", one_go = dir / "one_go", resumed = dir / "resumed";
  RunRanks(spread.ranks, [&](comm::World& world) {
    TrainingRun run(spread, choice, world);
    run.Train(0, 3);
    ASSERT_EQ(run.state().Save(Files(), half, {.step = 3, .extra = {{"cursor", "36"}}}),
              absl::OkStatus());
    run.Train(3, 6);
    ASSERT_EQ(run.state().Save(Files(), one_go, {.step = 6, .extra = {}}), absl::OkStatus());
  });
  RunRanks(spread.ranks, [&](comm::World& world) {
    TrainingRun run(spread, choice, world, /*seed=*/7);
    run.Train(0, 1);  // states and random numbers that must go
    const auto at = run.state().Load(Files(), half);
    ASSERT_TRUE(at.ok()) << at.status();
    EXPECT_EQ(at->step, 3);
    EXPECT_EQ(at->extra.at("cursor"), "36");
    run.Train(3, 6);
    ASSERT_EQ(run.state().Save(Files(), resumed, {.step = 6, .extra = {}}), absl::OkStatus());
  });
  ExpectSame(ContentsOf(one_go), ContentsOf(resumed), choice.name() + " " + spread.name());
}

// Every layout over 1 to 4 ranks.
const std::vector<Spread>& Spreads() {
  static const auto& spreads =
      *new std::vector<Spread>{{"single"},      {"ddp", 2},      {"ddp", 3},      {"ddp", 4},
                               {"zero1", 2},    {"zero1", 3},    {"zero1", 4},    {"zero2", 2},
                               {"zero2", 3},    {"zero2", 4},    {"tp", 2, 2, 0}, {"tp", 3, 3, 0},
                               {"tp", 4, 4, 0}, {"tp", 4, 2, 0}, {"tp", 4, 2, 1}, {"tp", 4, 2, 2}};
  return spreads;
}

// All cells of a matrix, or one of `share`: scripts/checkpoint_matrix.sh sets the variable. Where
// ranks are processes one of ten of these: every launch, read and write is one of all processes.
class Cells {
 public:
  explicit Cells(size_t share)
      : share_(std::getenv("APOGEE_ALL_CELLS") != nullptr ? 1
               : testing::NumProcesses() > 1              ? 10 * share + 1
                                                          : share) {}
  ~Cells() { std::printf("%zu of %zu cells\n", run_, all_); }
  // Whether the next one is to be run.
  bool Take() {
    const bool take = all_++ % share_ == 0;
    run_ += take ? 1 : 0;
    return take;
  }

 private:
  size_t share_, all_ = 0, run_ = 0;
};

// What a plugin that shards refuses.
bool IsOffered(const std::string& optimizer, const Spread& spread) {
  const bool shards = spread.plugin.starts_with("zero") || spread.zero > 0;
  return !shards || !optim::TakesLocalGradients(optimizer);
}

bool UpdatesInBackward(const std::string& optimizer) {
  return optimizer == "lomo" || optimizer == "adalomo";
}

TEST(TrainingStateTest, ResumesBitForBit) {
  Cells cells(20);
  for (const std::string& optimizer : optim::OptimizerNames()) {
    for (const Spread& spread : Spreads()) {
      for (const Precision precision :
           {Precision::kF64, Precision::kF32, Precision::kBf16, Precision::kFp16}) {
        for (const int64_t accumulate : {1, 3}) {
          if (spread.plugin == "single" && precision == Precision::kFp16) continue;
          if (UpdatesInBackward(optimizer) && accumulate > 1) continue;
          if (!IsOffered(optimizer, spread)) continue;
          if (!cells.Take()) continue;
          ExpectResumes(spread, {optimizer, precision, accumulate});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Loading under another layout and saving again gives the same contents.
TEST(TrainingStateTest, AnyLayoutToAnyLayout) {
  Cells cells(14);
  size_t index = 0;
  for (const std::string& optimizer : optim::OptimizerNames()) {
    for (const Spread& from : Spreads()) {
      if (!IsOffered(optimizer, from)) continue;
      const Choice choice{optimizer, ++index % 2 == 0 ? Precision::kF32 : Precision::kBf16};
      std::vector<Spread> targets;
      for (const Spread& to : Spreads()) {
        if (IsOffered(optimizer, to) && cells.Take()) targets.push_back(to);
      }
      if (targets.empty()) continue;
      const SharedTempDir dir;
      const std::string path = dir / "from";
      RunRanks(from.ranks, [&](comm::World& world) {
        TrainingRun run(from, choice, world);
        run.Train(0, 4);
        ASSERT_EQ(run.state().Save(Files(), path, {.step = 4, .extra = {}}), absl::OkStatus());
      });
      const auto want = ContentsOf(path);
      for (const Spread& to : targets) {
        const std::string again = dir / (to.name() + "again");
        RunRanks(to.ranks, [&](comm::World& world) {
          TrainingRun run(to, choice, world, /*seed=*/7);
          const auto at = run.state().Load(Files(), path);
          ASSERT_TRUE(at.ok()) << at.status();
          ASSERT_EQ(run.state().Save(Files(), again, {.step = 4, .extra = {}}), absl::OkStatus());
        });
        ExpectSame(want, ContentsOf(again),
                   choice.name() + " from " + from.name() + " to " + to.name());
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace training_state_test
}  // namespace apogee
