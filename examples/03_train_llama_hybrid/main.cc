// SPDX-License-Identifier: Apache-2.0

// Trains a Llama on text with HybridParallelPlugin: tensor parallelism over --tp-size ranks, data
// parallelism over the replicas, and ZeRO over the replicas. Copy this program for that; model,
// optimizer and loop are those of one rank.
//
//   03_train_llama_hybrid --plan-svg plan.svg                     # 4 ranks: tp 2, dp 2, ZeRO 2
//   03_train_llama_hybrid --ranks 1 --tp-size 1 --zero-stage 0    # the same training on one rank
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/line_file.h"
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
#include "apogee/nn/models/llama.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/pictures/shard_map.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "flags.h"

using namespace apogee;

namespace {

// All ranks make the picture; rank 0 writes the file.
void DrawPlan(const Boosted& boosted, const comm::World& world, const Flags& flags) {
  if (flags.plan_svg.empty()) return;
  const std::string svg = ShardMapSvg(boosted.optimizer, world.group(),
                                      {.model = "llama, " + flags.precision,
                                       .tp_size = flags.parallel.tp_size,
                                       .zero_stage = flags.parallel.stage});
  if (world.rank() == 0) OkOrThrow(ValueOrThrow(LineFile::Create(flags.plan_svg))->Append(svg));
}

// Every rank runs this; returns the program's exit code. `start`: the process's memory before
// launch.
int Train(const comm::World& world, const Flags& flags, const data::TextCorpus& corpus,
          const ProcessMemory& start) {
  const ContextPtr& context = world.context();
  // The ordinary training setup. Every rank makes the whole model; boost keeps this rank's shard.
  nn::Llama model(flags.model);
  model.Initialize(context, {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = ValueOrThrow(
      optim::MakeOptimizer(flags.optimizer, model.Parameters(), flags.optimizer_options));
  optim::LrScheduler scheduler(
      *optimizer, ValueOrThrow(optim::MakeLrSchedule(
                      "cosine", {{"total_steps", std::to_string(flags.steps)},
                                 {"warmup_steps", std::to_string(flags.steps / 10)}})));

  // Call boost before making the data: it lists everything that does not fit, and only ranks that
  // fit have parts of the data.
  HybridParallelPlugin plugin(world, flags.training, flags.parallel);
  Booster booster(plugin);
  booster.TraceTo(world.trace(), world.rank());
  booster.set_run_config(RunConfigOf(flags));
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  DrawPlan(boosted, world, flags);

  // Ranks of one tensor-parallel group read the same samples; the replicas divide each batch.
  const int64_t block = flags.model.max_position_embeddings,
                batch = flags.batch / plugin.data_size();
  const auto dataset = std::make_shared<data::TextDataset>(corpus.train(), block);
  const auto order = std::make_shared<data::ShuffleSampler>(dataset->num_samples(), flags.seed);
  const auto sampler = std::make_shared<data::DistributedSampler>(
      order, plugin.data_rank(), plugin.data_size(), batch * flags.accumulate);

  RunCheckpoints checkpoints(
      booster, world,
      {.flags = flags.checkpoints,
       .out = flags.out,
       .steps = flags.steps,
       .data = DescribeData(corpus, flags.seed, flags.batch * flags.accumulate,
                            flags.model.max_position_embeddings)});
  const int64_t done = checkpoints.Start();  // steps that the resumed run has done
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
    OkOrThrow(metrics->Note("model: Llama, " + FormatThousands(num_parameters) + " parameters, " +
                            flags.precision + ", " + DescribeRanks(world) +
                            DescribeMesh(world, flags.parallel.tp_size, flags.parallel.stage)));
  }

  const auto tell_notes = [&] {
    for (const std::string& note : checkpoints.TakeNotes()) {
      if (metrics != nullptr) OkOrThrow(metrics->Note(note));
    }
  };
  const bool finished = checkpoints.IsFinished(done, metrics.get());
  tell_notes();
  if (finished) return 0;

  const Accumulation window = booster.accumulate(flags.accumulate);
  StepEvent event{.step = done};
  for (auto& samples : loader) {
    // In training the logits are sharded by vocabulary; boosted.criterion can handle that.
    booster.backward(boosted.criterion(boosted.model(samples.inputs), samples.targets),
                     boosted.optimizer);
    if (!window.is_complete()) continue;

    ++event.step;
    // Ranks of one tensor-parallel group have the same loss, so the mean over all ranks is the
    // batch's mean. A signal reaches the ranks at different moments, so they add up the signals
    // they have seen.
    std::vector<double> stop = StopSignals();
    stop.push_back(window.loss());
    stop = SumOverRanks(world, stop);
    event.loss = stop.back() / world.size();
    event.tokens = flags.batch * flags.accumulate * block;
    APOGEE_CHECK(std::isfinite(event.loss), "step ", event.step, ": the loss is ",
                 std::isnan(event.loss) ? "nan" : "infinite", "; lower --lr (now ", flags.lr,
                 ") or --max-norm (now ", flags.training.max_norm, ")");
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    event.lr = scheduler.last_lr()[0];
    event.grad_norm = boosted.optimizer.last_step().grad_norm;
    if (metrics != nullptr) OkOrThrow(metrics->Step(event));
    scheduler.step();
    const bool leave = checkpoints.AfterStep(event.step, stop);
    tell_notes();
    if (leave) return checkpoints.exit_code();
  }

  const ValidationEvent validation = Validate(
      boosted, plugin, corpus, world, {.block = block, .batch = flags.batch, .step = flags.steps});
  const std::string memory = DescribeMemory(world, start);
  if (metrics != nullptr) {
    OkOrThrow(metrics->Validation(validation));
    OkOrThrow(metrics->Note(memory));
  }
  // In evaluation logits are whole, but the ranks of a tensor-parallel group still call the model
  // together: the first group writes the sample. With sharded parameters all ranks must call.
  if (plugin.data_rank() != 0 && flags.parallel.stage < 3) return 0;
  const std::string sample = Generate(boosted.model, context, flags.prompt,
                                      {.block = block, .bytes = flags.sample, .seed = flags.seed});
  if (metrics != nullptr) OkOrThrow(metrics->Note("sample:\n" + sample));
  return 0;
}

// The program inside RunProgram.
int Run(int argc, char** argv) {
  Flags flags;
  int exit_code = 0;  // rank 0's
  if (const std::optional<int> stop = ParseFlags(argc, argv, flags)) return *stop;
  TraceFile trace(flags.trace);
  const auto corpus = ValueOrThrow(
      data::TextCorpus::Load(flags.data, {.block = flags.model.max_position_embeddings}));
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
  return RunProgram("03_train_llama_hybrid", [&] { return Run(argc, argv); });
}
