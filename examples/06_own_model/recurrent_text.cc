// SPDX-License-Identifier: Apache-2.0

// Trains a recurrent language model of one's own (recurrent_model.h) on text, under any plugin.
//
//   06_recurrent_text                                          # the King James Bible, one rank
//   06_recurrent_text --ranks 4 --plugin zero2
//   06_recurrent_text --ranks 4 --plugin hybrid --tp-size 2    # the units of the GRUs on two ranks
//   06_recurrent_text --ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=2
#include <memory>

#include "apogee/apogee.h"
#include "apogee/driver/plugin_flags.h"
#include "apogee/driver/text_run.h"
#include "recurrent_model.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  driver::PluginFlags plugin{.registry = PluginRegistry(own_model::RecurrentPlan())};
  int dim = 128;
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.block = 64;
  flags.batch = 16;
  flags.steps = 300;
  flags.lr = 3e-3;
  flags.log_every = 20;
  flags.Declare(line, {.accumulate = false, .sample = false});
  flags.plugin.Declare(line);
  line.Group("Model");
  line.AddCount("--dim", flags.dim, "Width of the embedding, and units of each GRU");
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  const std::unique_ptr<Plugin> plugin = flags.plugin.Make(rank.world, flags);
  own_model::RecurrentLm model(rank.corpus.tokenizer->vocab_size(), flags.dim);
  model.Initialize(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = flags.MakeOptimizer(model.Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  Booster booster(*plugin);
  driver::TextRun run(rank, flags, booster, *plugin, flags.plugin.Settings({}));
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  if (!run.Start(boosted, scheduler, {"GRU", num_parameters, flags.plugin.Layout(rank.world)})) {
    return 0;
  }
  for (auto& samples : run.samples()) {
    // Forward and backward under any plugin, pipelines included.
    const PipelineResult result =
        booster.execute_pipeline(samples, boosted.model, boosted.criterion, &boosted.optimizer);
    run.BeforeStep(result.loss.Item());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  run.ReportMemory();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(
      argc, argv, flags,
      {.name = "06_recurrent_text",
       .about = "Trains a recurrent language model on text, byte by byte.",
       .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
       .settle = [&](const driver::CommandLine& line) { flags.plugin.Settle(line, flags); },
       .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
