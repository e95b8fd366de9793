// SPDX-License-Identifier: Apache-2.0

// The runs whose checkpoints are kept in tests/golden_checkpoints: a small Mlp, three steps, every
// layout with every optimizer. A text with a line per tensor describes a checkpoint's contents.
#ifndef APOGEE_TESTS_BOOSTER_GOLDEN_RUN_H_
#define APOGEE_TESTS_BOOSTER_GOLDEN_RUN_H_

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/comm/launch.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::testing {

inline constexpr int64_t kGoldenSteps = 3;
inline const std::vector<std::string> kGoldenOptimizers = {"adamw", "adafactor", "adamw8bit"};

struct GoldenLayout {
  std::string name;
  int ranks = 1;
};
inline const std::vector<GoldenLayout> kGoldenLayouts = {
    {"ddp", 2}, {"zero2", 2}, {"tp2_zero2", 4}};

class GoldenRun {
 public:
  GoldenRun(const std::string& layout, const std::string& optimizer, const comm::World& world)
      : model_({.sizes = {8, 16, 6}}), plugin_(MakePlugin(layout, world)), booster(*plugin_) {
    model_.Initialize(world.context(), {.seed = 3});
    const optim::OptionMap options =
        optimizer == "adamw8bit" ? optim::OptionMap{{"min_8bit_size", "0"}, {"block_size", "64"}}
                                 : optim::OptionMap{};
    optimizer_ = ValueOrThrow(optim::MakeOptimizer(optimizer, model_.Parameters(), options));
    boosted_ = std::make_unique<Boosted>(
        booster.boost(model_, *optimizer_, {.criterion = nn::CrossEntropyLoss()}));
  }
  void Step() {
    const ContextPtr context = model_.Parameters()[0]->data().context();
    const Tensor output = boosted_->model(Tensor::Full({2, 8}, DType::kF32, 0.5, context));
    const Tensor target = Tensor::FromVector<int64_t>({1, 2}, {2}, context);
    booster.backward(boosted_->criterion(output, target), *optimizer_);
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  static std::unique_ptr<Plugin> MakePlugin(const std::string& layout, const comm::World& world) {
    if (layout == "ddp") return std::make_unique<DdpPlugin>(world.group());
    if (layout == "zero2") {
      return std::make_unique<LowLevelZeroPlugin>(world.group(), TrainingOptions{},
                                                  LowLevelZeroOptions{.stage = 2});
    }
    if (layout == "tp2_zero2") {
      return std::make_unique<HybridParallelPlugin>(
          world, TrainingOptions{}, HybridParallelOptions{.tp_size = 2, .stage = 2});
    }
    return std::make_unique<SingleRankPlugin>();
  }

  nn::Mlp model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Plugin> plugin_;

 public:
  Booster booster;

 private:
  std::unique_ptr<Boosted> boosted_;
};

// Throws the error of a rank that threw.
template <typename Fn>
void OnGoldenRun(const GoldenLayout& layout, const std::string& optimizer, const Fn& fn) {
  OkOrThrow(
      comm::launch({.num_ranks = layout.ranks, .threads_per_rank = 1}, [&](comm::World& world) {
        GoldenRun run(layout.name, optimizer, world);
        fn(run);
      }));
}

// "model/w F32 [2, 3] 0123456789abcdef": the digest of the bytes of the whole tensor.
inline std::string TellContents(const std::string& checkpoint) {
  const auto reader =
      ValueOrThrow(checkpoint::CheckpointReader::Open(checkpoint::RealFileSystem(), checkpoint));
  std::string text;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Tensor whole =
        Tensor::Zeros(Shape(tensor.shape), *checkpoint::TensorDType(tensor.dtype), CpuContext());
    OkOrThrow(reader.Read(name, Layout(whole.shape()), whole));
    const auto digests = checkpoint::BlockDigests(
        {static_cast<const std::byte*>(whole.raw()), static_cast<size_t>(whole.bytes())});
    text += internal::Concat(name, " ", tensor.dtype, " ", whole.shape());
    for (const uint64_t digest : digests) {
      char hex[20];
      std::snprintf(hex, sizeof(hex), " %016llx", static_cast<unsigned long long>(digest));
      text += hex;
    }
    text += "\n";
  }
  return text;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_BOOSTER_GOLDEN_RUN_H_
