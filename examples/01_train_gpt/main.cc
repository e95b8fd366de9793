// SPDX-License-Identifier: Apache-2.0

// Trains a GPT on text, byte by byte, and lets it write some. Copy this program to start with: an
// ordinary setup (text, model, optimizer, schedule), one call of boost(), and the ordinary loop,
// which every rank runs.
//
//   01_train_gpt --out out                                     # the King James Bible
//   01_train_gpt --ranks 4 --data books/ --precision bf16 --accumulate 4
//   01_train_gpt --ranks 4 --plugin hybrid --tp-size 2         # tensor parallel over two ranks
//   01_train_gpt --out out --save-every 100 --resume auto      # resumes where it was stopped
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/graphed_step.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process/standard_descriptors.h"
#include "apogee/core/process_memory.h"
#include "apogee/core/text/text.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/checkpoints.h"
#include "apogee/examples/common/generate.h"
#include "apogee/examples/common/program.h"
#include "apogee/examples/common/ranks.h"
#include "apogee/examples/common/trace_file.h"
#include "apogee/examples/common/validate.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "flags.h"

using namespace apogee;

namespace {

// Every rank runs this; returns the program's exit code. `start`: the process's memory before
// launch.
int Train(const comm::World& world, const Flags& flags, const data::TextCorpus& corpus,
          const ProcessMemory& start) {
  const ContextPtr& context = world.context();
  // The plugin decides how the loop below runs: on one rank, with gradients averaged over many, or
  // with layers sharded over ranks.
  const std::unique_ptr<Plugin> plugin = MakePlugin(flags, world);

  // The ordinary training setup.
  nn::Gpt2 model(flags.model);
  model.Initialize(context, {.seed = flags.seed});
  const int64_t num_parameters =
      model.num_parameters();  // before boost, which may leave this rank a shard
  const auto optimizer = ValueOrThrow(
      optim::MakeOptimizer(flags.optimizer, model.Parameters(), flags.optimizer_options));
  optim::LrScheduler scheduler(
      *optimizer, ValueOrThrow(optim::MakeLrSchedule(flags.schedule, flags.schedule_options)));

  // From here on the plugin runs the setup. The loop does not change.
  Booster booster(*plugin);
  booster.TraceTo(world.trace(), world.rank());
  booster.set_run_config(RunConfigOf(flags));
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});

  // The data: samples of `block` bytes that start anywhere in the training text, in an order that
  // depends only on the seed. A rank takes its part of each step's samples.
  const int64_t batch = flags.batch / plugin->data_size();
  const auto dataset = std::make_shared<data::TextDataset>(corpus.train(), flags.model.n_positions);
  const auto order = std::make_shared<data::ShuffleSampler>(dataset->num_samples(), flags.seed);
  const auto sampler = std::make_shared<data::DistributedSampler>(
      order, plugin->data_rank(), plugin->data_size(), batch * flags.accumulate);

  RunCheckpoints checkpoints(
      booster, world,
      {.flags = flags.checkpoints,
       .out = flags.out,
       .steps = flags.steps,
       .data = DescribeData(corpus, flags.seed, flags.batch * flags.accumulate,
                            flags.model.n_positions)});
  const int64_t done = checkpoints.Start();  // steps that the resumed run has done
  // A resumed run continues after the samples of the steps that are done.
  data::Loader loader(dataset, sampler, context,
                      {.batch = batch, .num_batches = (flags.steps - done) * flags.accumulate});
  loader.set_state({.next_batch = done * flags.accumulate});

  // Only rank 0 prints and writes metrics.
  std::unique_ptr<MetricsLogger> metrics;
  if (world.rank() == 0) {
    metrics = ValueOrThrow(MetricsLogger::Create({.out = flags.out,
                                                  .total_steps = flags.steps,
                                                  .resumed_step = done,
                                                  .log_every = flags.log_every,
                                                  .ledger = &context->ledger()}));
    if (!corpus.notice().empty()) OkOrThrow(metrics->Note("note: " + corpus.notice()));
    OkOrThrow(metrics->Note("text: " + corpus.description()));
    OkOrThrow(metrics->Note(
        "model: GPT-2, " + FormatThousands(num_parameters) + " parameters, " + flags.precision +
        ", " + DescribeRanks(world) +
        (flags.plugin == "hybrid" ? DescribeMesh(world, flags.tp_size, flags.zero_stage) : "")));
  }

  const auto tell_notes = [&] {
    for (const std::string& note : checkpoints.TakeNotes()) {
      if (metrics != nullptr) OkOrThrow(metrics->Note(note));
    }
  };
  const bool finished = checkpoints.IsFinished(done, metrics.get());
  tell_notes();
  if (finished) return 0;

  std::optional<GraphedMicroStep> graphed;
  if (flags.cuda_graphs) {
    graphed.emplace(booster, boosted.model, boosted.criterion, boosted.optimizer);
  }
  const Accumulation window = booster.accumulate(flags.accumulate);
  StepEvent event{.step = done};
  for (auto& samples : loader) {
    if (graphed) {
      graphed->Run(samples);
    } else {
      booster.backward(boosted.criterion(boosted.model(samples.inputs), samples.targets),
                       boosted.optimizer);
    }
    if (!window.is_complete()) continue;

    ++event.step;
    // A signal reaches the ranks at different moments, so they add up the signals they have seen.
    std::vector<double> stop = StopSignals();
    stop.push_back(window.loss());
    stop = SumOverRanks(world, stop);
    event.loss = stop.back() / world.size();
    event.tokens = flags.batch * flags.accumulate * flags.model.n_positions;
    APOGEE_CHECK(std::isfinite(event.loss), "step ", event.step, ": the loss is ",
                 std::isnan(event.loss) ? "nan" : "infinite", "; lower --lr (now ", flags.lr,
                 ") or --max-norm (now ", flags.max_norm, ")");
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    event.lr = scheduler.last_lr()[0];
    event.grad_norm = boosted.optimizer.last_step().grad_norm;
    if (metrics != nullptr) {
      OkOrThrow(metrics->Step(event));
      if (boosted.optimizer.last_step().skip) {
        OkOrThrow(metrics->Note(
            "step " + std::to_string(event.step) + " changed nothing: the gradient of " +
            boosted.optimizer.last_step().nonfinite_parameter + " is not finite"));
      }
    }
    scheduler.step();
    const bool leave = checkpoints.AfterStep(event.step, stop);
    tell_notes();
    if (leave) return checkpoints.exit_code();
  }

  const ValidationEvent validation =
      Validate(boosted, *plugin, corpus, world,
               {.block = flags.model.n_positions, .batch = flags.batch, .step = flags.steps});
  const std::string memory = DescribeMemory(world, start);
  if (metrics != nullptr) {
    OkOrThrow(metrics->Validation(validation));
    OkOrThrow(metrics->Note(memory));
  }
  // Ranks of one tensor-parallel group call the model together: the first group writes the sample.
  // With sharded parameters all ranks must call.
  const bool all_write = flags.plugin == "gemini" || flags.zero_stage == 3;
  if (plugin->data_rank() != 0 && !all_write) return 0;
  const std::string sample = Generate(boosted.model, context, flags.prompt,
                                      {.block = flags.model.n_positions,
                                       .bytes = flags.sample,
                                       .temperature = flags.temperature,
                                       .seed = flags.seed});
  if (metrics != nullptr) OkOrThrow(metrics->Note("sample:\n" + sample));
  return 0;
}

// The program inside RunProgram.
int Run(int argc, char** argv) {
  Flags flags;
  int exit_code = 0;  // rank 0's
  if (const std::optional<int> stop = ParseFlags(argc, argv, flags)) return *stop;
  TraceFile trace(flags.trace);
  const auto corpus =
      ValueOrThrow(data::TextCorpus::Load(flags.data, {.block = flags.model.n_positions}));
  const ProcessMemory start = ValueOrThrow(ReadProcessMemory());
  if (flags.checkpoints.save_every > 0) CatchStopSignals();
  OkOrThrow(comm::launch({.num_ranks = flags.ranks,
                          .threads_per_rank = flags.threads_per_rank,
                          .device = flags.device,
                          .comm = flags.comm,
                          .timeout_seconds = flags.timeout_seconds,
                          .flight_record_dir = flags.flight_records,
                          .trace = trace.get()},
                         [&](comm::World& world) {
                           const int code = Train(world, flags, corpus, start);
                           if (world.rank() == 0) exit_code = code;
                         }));
  trace.Write();
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardDescriptors();
  UseBlockingWaits(argv);
  return RunProgram("01_train_gpt", [&] { return Run(argc, argv); });
}
