// SPDX-License-Identifier: Apache-2.0

// Trains a convolutional classifier of one's own (image_model.h) on synthetic images, under any
// plugin. The loop needs no driver: flags, launch, plugin by name, and booster.execute_pipeline.
//
//   06_classify_images                                          # one rank
//   06_classify_images --ranks 4 --plugin gemini
//   06_classify_images --ranks 4 --plugin hybrid --plugin.tp_size=2
//   06_classify_images --ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=2
#include <cstdio>
#include <memory>
#include <string>

#include "apogee/apogee.h"
#include "apogee/driver/command_line.h"
#include "image_model.h"

using namespace apogee;

namespace {

struct Flags {
  int ranks = 1, steps = 100;
  int64_t batch = 48, channels = 8;
  std::string plugin = "ddp";
  optim::OptionMap options;
  Precision precision = Precision::kF32;
};

// The mean of a number over all ranks.
double MeanOver(const comm::World& world, double value) {
  if (world.group() == nullptr) return value;
  const Tensor sum = Tensor::FromVector<double>({value}, {1}, world.context());
  world.group()->AllReduce(sum);
  return sum.Item() / world.size();
}

constexpr int64_t kNumNew = 480;

// The part of new images that the model classifies right. Every rank runs it; the outputs are on
// the ranks that have the model's last part.
double Accuracy(const comm::World& world, Booster& booster, nn::Module& model) {
  model.Train(false);
  const data::Batch images = own_model::ImageBatch(/*step=*/-1, 0, kNumNew, world.context());
  const PipelineResult result =
      booster.execute_pipeline(images, model, nullptr, nullptr, {.return_outputs = true});
  model.Train();
  double right = 0;
  if (result.outputs.defined()) {
    const Tensor chosen = autograd::ArgMax(result.outputs, 1);
    right =
        ops::SumLeading(ops::Equal(chosen, images.targets).To(DType::kF64), 0, DType::kF64).Item() /
        kNumNew;
  }
  return MeanOver(world, right) / MeanOver(world, result.outputs.defined() ? 1 : 0);
}

void Train(const comm::World& world, const Flags& flags) {
  own_model::ImageClassifier model(flags.channels);
  model.Initialize(world.context(), {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.01});
  const PluginRegistry registry(own_model::ImagePlan());
  const std::unique_ptr<Plugin> plugin = ValueOrThrow(
      registry.Make(flags.plugin, world, {.precision = flags.precision}, flags.options));
  Booster booster(*plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = own_model::FocalLoss});

  APOGEE_CHECK(flags.batch % plugin->data_size() == 0, "--batch ", flags.batch,
               " cannot be divided among ", plugin->data_size(), " ranks");
  const int64_t own = flags.batch / plugin->data_size();
  for (int step = 1; step <= flags.steps; ++step) {
    const data::Batch images =
        own_model::ImageBatch(step, plugin->data_rank() * own, own, world.context());
    const PipelineResult result =
        booster.execute_pipeline(images, boosted.model, boosted.criterion, &boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    const double loss = MeanOver(world, result.loss.Item());
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %4d  loss %.9f\n", step, loss);
  }
  const double accuracy = Accuracy(world, booster, boosted.model);
  if (world.rank() == 0) std::printf("%.1f %% of new images are right\n", 100 * accuracy);
}

}  // namespace

int main(int argc, char** argv) try {
  Flags flags;
  driver::CommandLine line("06_classify_images", "Trains a convolutional classifier.");
  line.AddCount("--ranks", flags.ranks, "Ranks, which are threads");
  line.AddCount("--steps", flags.steps, "Steps");
  line.AddCount("--batch", flags.batch, "Images per step, of all ranks together");
  line.AddCount("--channels", flags.channels, "Channels of each block");
  line.AddText("--plugin", flags.plugin, "single, ddp, zero1, zero2, gemini or hybrid");
  line.AddOptions("plugin", flags.options);
  line.AddChoice("--precision", flags.precision, ParsePrecision, "f64, f32, bf16 or fp16");
  if (const auto code = line.Parse(argc, argv, [] {})) return *code;
  OkOrThrow(
      comm::launch({.num_ranks = flags.ranks}, [&](comm::World& world) { Train(world, flags); }));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "06_classify_images: %s\n", error.what());
  return 1;
}
