// SPDX-License-Identifier: Apache-2.0

// Trains a GPT on text and lets it write some. Copy this program to start with: an
// ordinary setup (plugin, model, optimizer, schedule), one call of boost(), and the ordinary loop,
// which every rank runs.
//
//   01_train_gpt --out out                                     # the King James Bible
//   01_train_gpt --ranks 4 --data books/ --precision bf16 --accumulate 4
//   01_train_gpt --ranks 4 --plugin hybrid --tp-size 2         # tensor parallel over two ranks
//   01_train_gpt --out out --save-every 100 --resume auto      # resumes where it was stopped
//   01_train_gpt --model llama                                 # or a model of your own
//   01_train_gpt --train-tokenizer 4096 --out out              # a token is about 4 bytes
//   01_train_gpt --tokenizer tokenizer.json --data corpus.bin  # tokens made before
#include <memory>
#include <optional>

#include "apogee/apogee.h"
#include "apogee/driver/model_flags.h"
#include "apogee/driver/plugin_flags.h"
#include "apogee/driver/text_run.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  driver::PluginFlags plugin;
  driver::ModelFlags model;
  bool cuda_graphs = false;
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.steps = 1200;
  flags.lr = 2e-3;
  flags.Declare(line);
  flags.plugin.Declare(line);
  flags.model.Declare(line);
  line.AddSwitch("--cuda-graphs", flags.cuda_graphs,
                 "On a GPU, run each micro-batch's forward and backward as one CUDA graph, and the "
                 "optimizer's step as another; the losses are the same");
}

// Checks the flags together.
void Settle(const driver::CommandLine& line, Flags& flags) {
  flags.plugin.Settle(line, flags);
  flags.model.Settle(flags.block);
  if (flags.plugin.reproducible && flags.model.sizes.dropout > 0) {
    Throw("--reproducible needs --dropout 0, got ", flags.model.sizes.dropout,
          ": which mask a sample gets depends on the number of ranks and micro-batches");
  }
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  // The plugin decides how the loop below runs: on one rank, with gradients averaged over many, or
  // with layers sharded over ranks.
  const std::unique_ptr<Plugin> plugin = flags.plugin.Make(rank.world, flags);

  // The ordinary training setup.
  const std::unique_ptr<nn::Module> model = flags.model.Make(rank.corpus.tokenizer->vocab_size());
  model->Initialize(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model->num_parameters();  // boost may leave this rank a shard
  const auto optimizer = flags.MakeOptimizer(model->Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  // From here on the plugin runs the setup. The loop does not change.
  Booster booster(*plugin);
  driver::TextRun run(
      rank, flags, booster, *plugin,
      flags.plugin.Settings({{"cuda_graphs", flags.cuda_graphs ? "true" : "false"}}));
  Boosted boosted = booster.boost(*model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  if (!run.Start(boosted, scheduler,
                 {flags.model.name, num_parameters, flags.plugin.Layout(rank.world)})) {
    return 0;
  }

  std::optional<GraphedMicroStep> graphed;
  if (flags.cuda_graphs) {
    graphed.emplace(booster, boosted.model, boosted.criterion, boosted.optimizer);
  }
  const Accumulation window = booster.accumulate(flags.accumulate);
  for (auto& samples : run.samples()) {
    if (graphed) {
      graphed->Run(samples);
    } else {
      booster.backward(boosted.criterion(boosted.model(samples.inputs), samples.targets),
                       boosted.optimizer);
    }
    if (!window.is_complete()) continue;

    run.BeforeStep(window.loss());
    if (graphed) {
      graphed->Step();
    } else {
      boosted.optimizer.step();
    }
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  run.Validate();
  run.ReportMemory();
  run.WriteSample();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "01_train_gpt",
                      .about = "Trains a GPT on text and lets it write some.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine& line) { Settle(line, flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
