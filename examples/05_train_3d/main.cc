// SPDX-License-Identifier: Apache-2.0

// Trains a Llama on text over three axes: --pp pipeline stages, which work on different
// micro-batches at the same time; tensor parallelism over --tp ranks in each stage; and
// data-parallel replicas, over which ZeRO shards the optimizer states. Copy this program for a
// pipeline: booster.execute_pipeline takes the place of the loop's forward and backward.
//
//   05_train_3d --trace run.json                      # 8 ranks: pp 2, tp 2, dp 2, ZeRO 1
//   05_train_3d --pp 4 --tp 1 --schedule zbv --layers 8
//   05_train_3d --ranks 1 --tp 1 --pp 1               # the same training on one rank
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/booster/run_lock.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process/standard_descriptors.h"
#include "apogee/core/process_memory.h"
#include "apogee/core/text/text.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/program.h"
#include "apogee/examples/common/ranks.h"
#include "apogee/examples/common/trace_file.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/pictures/timeline/trace_reader.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "flags.h"

using namespace apogee;

namespace {

std::string Describe(const comm::World& world, const Flags& flags, int64_t num_parameters) {
  const HybridParallelOptions& parallel = flags.parallel;
  std::string text = "model: Llama, " + FormatThousands(num_parameters) + " parameters, " +
                     flags.precision + ", " + DescribeRanks(world) +
                     DescribeMesh(world, parallel.tp_size, parallel.stage, parallel.pp_size);
  if (parallel.pp_size == 1) return text;
  return text + ", " + flags.schedule + " with " + std::to_string(flags.microbatches) +
         " micro-batches";
}

// Every rank runs this. `start`: the process's memory before launch.
void Train(const comm::World& world, const Flags& flags, const data::TextCorpus& corpus,
           const ProcessMemory& start) {
  const ContextPtr& context = world.context();
  // Each rank makes only the values that it uses: no rank ever has the whole model.
  nn::Llama model(flags.model);
  model.InitializeLazily(context, {.seed = flags.seed});
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
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});

  // All ranks of one replica (its stages and tensor-parallel groups) read the same samples.
  const int64_t block = flags.model.max_position_embeddings,
                batch = flags.batch / plugin.data_size();
  const auto dataset = std::make_shared<data::TextDataset>(corpus.train(), block);
  const auto order = std::make_shared<data::ShuffleSampler>(dataset->num_samples(), flags.seed);
  data::Loader loader(dataset,
                      std::make_shared<data::DistributedSampler>(order, plugin.data_rank(),
                                                                 plugin.data_size(), batch),
                      context, {.batch = batch, .num_batches = flags.steps});

  // Only rank 0 prints and writes metrics. The lock keeps other runs out of its folder.
  const std::unique_ptr<RunLock> lock =
      flags.out.empty() ? nullptr : ValueOrThrow(RunLock::TakeForAll(flags.out, world.group()));
  std::unique_ptr<MetricsLogger> metrics;
  if (world.rank() == 0) {
    metrics = ValueOrThrow(MetricsLogger::Create({.out = flags.out,
                                                  .total_steps = flags.steps,
                                                  .log_every = flags.log_every,
                                                  .ledger = &context->ledger()}));
    if (!corpus.notice().empty()) OkOrThrow(metrics->Note("note: " + corpus.notice()));
    if (lock != nullptr && !lock->notice().empty()) OkOrThrow(metrics->Note(lock->notice()));
    OkOrThrow(metrics->Note("text: " + corpus.description()));
    OkOrThrow(metrics->Note(Describe(world, flags, num_parameters)));
  }

  StepEvent event{.tokens = flags.batch * block};
  for (auto& samples : loader) {
    ++event.step;
    // Forward and backward of all micro-batches, and the mean loss of this replica's batch.
    const PipelineResult result =
        booster.execute_pipeline(samples, boosted.model, boosted.criterion, &boosted.optimizer);
    // Ranks of one replica have the same loss, so the mean over all ranks is the batch's mean.
    event.loss = SumOverRanks(world, {result.loss.Item()})[0] / world.size();
    APOGEE_CHECK(std::isfinite(event.loss), "step ", event.step, ": the loss is ",
                 std::isnan(event.loss) ? "nan" : "infinite", "; lower --lr (now ", flags.lr,
                 ") or --max-norm (now ", flags.training.max_norm, ")");
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    event.lr = scheduler.last_lr()[0];
    event.grad_norm = boosted.optimizer.last_step().grad_norm;
    if (metrics != nullptr) OkOrThrow(metrics->Step(event));
    scheduler.step();
  }
  const std::string memory = DescribeMemory(world, start);
  if (metrics != nullptr) OkOrThrow(metrics->Note(memory));
}

// Prints what `apogee timeline` prints for the whole run.
void PrintBubbles(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  const std::string text =
      ValueOrThrow(checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, kMostBytes));
  const std::vector<StepTimeline> steps = Timelines(ValueOrThrow(ReadPipelineEvents(text, path)));
  if (steps.empty()) return;  // no pipeline
  std::printf("pipeline: %zu steps, bubble %s\n", steps.size(),
              FormatPercent(BubbleShare(steps)).c_str());
}

// The program inside RunProgram.
int Run(int argc, char** argv) {
  Flags flags;
  if (const std::optional<int> stop = ParseFlags(argc, argv, flags)) return *stop;
  TraceFile trace(flags.trace);
  const auto corpus = ValueOrThrow(
      data::TextCorpus::Load(flags.data, {.block = flags.model.max_position_embeddings}));
  const ProcessMemory start = ValueOrThrow(ReadProcessMemory());
  OkOrThrow(comm::launch({.num_ranks = flags.ranks,
                          .threads_per_rank = flags.threads_per_rank,
                          .device = flags.device,
                          .comm = flags.comm,
                          .timeout_seconds = flags.timeout_seconds,
                          .flight_record_dir = flags.flight_records,
                          .trace = trace.get()},
                         [&](comm::World& world) { Train(world, flags, corpus, start); }));
  trace.Write();
  if (!flags.trace.empty()) PrintBubbles(flags.trace);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardDescriptors();
  UseBlockingWaits(argv);
  return RunProgram("05_train_3d", [&] { return Run(argc, argv); });
}
