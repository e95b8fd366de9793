// Trains a GPT on text, byte by byte, and lets it write some. The program to copy: an ordinary
// setup (text, model, optimizer, schedule), one call to boost(), and the ordinary loop.
//
//   01_train_gpt --out out                          # the King James Bible, about a minute and a
//   half 01_train_gpt --data books/ --precision bf16 --accumulate 4 --optimizer sgd --lr 0.1
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/metrics.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process_memory.h"
#include "apogee/core/text.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/lr_schedule_registry.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "flags.h"
#include "generate.h"

using namespace apogee;

namespace {

// Mean loss over the whole validation part.
ValidationEvent Validate(Boosted& boosted, const data::TextCorpus& corpus, const Flags& flags,
                         const ContextPtr& context) {
  const autograd::NoGradGuard no_grad;
  boosted.model.Train(false);
  const int64_t block = flags.model.n_positions;
  const auto dataset =
      std::make_shared<data::TextDataset>(corpus.validation(), block, /*stride=*/block);
  const int64_t batch_size = std::min(flags.batch, dataset->num_samples());
  data::Loader loader(dataset, std::make_shared<data::SequentialSampler>(dataset->num_samples()),
                      context, {.batch = batch_size});
  double sum = 0;
  for (auto& batch : loader) {
    sum += boosted.criterion(boosted.model(batch.inputs), batch.targets).Item();
  }
  boosted.model.Train(true);
  return {.step = flags.steps,
          .loss = sum / static_cast<double>(loader.size()),
          .tokens = loader.size() * batch_size * block};
}

void Train(const Flags& flags) {
  // The data: samples of `block` bytes that start anywhere in the training part, in an order that
  // depends on the seed only.
  const auto corpus =
      ValueOrThrow(data::TextCorpus::Load(flags.data, {.block = flags.model.n_positions}));
  const ProcessMemory start = ValueOrThrow(ReadProcessMemory());
  const ContextPtr context = CpuContext({.num_threads = flags.threads});
  const auto dataset = std::make_shared<data::TextDataset>(corpus.train(), flags.model.n_positions);
  data::Loader loader(
      dataset, std::make_shared<data::ShuffleSampler>(dataset->num_samples(), flags.seed), context,
      {.batch = flags.batch, .num_batches = flags.steps * flags.accumulate});

  // The ordinary training setup.
  nn::Gpt2 model(flags.model);
  model.Initialize(context, {.seed = flags.seed});
  const auto optimizer = ValueOrThrow(
      optim::MakeOptimizer(flags.optimizer, model.Parameters(), flags.optimizer_options));
  optim::LrScheduler scheduler(
      *optimizer, ValueOrThrow(optim::MakeLrSchedule(flags.schedule, flags.schedule_options)));

  // Another plugin runs the same loop on many ranks.
  SingleRankPlugin plugin(flags.plugin);
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, *optimizer, nn::CrossEntropyLoss(), &loader, &scheduler);

  const auto metrics = ValueOrThrow(MetricsLogger::Create({.out = flags.out,
                                                           .total_steps = flags.steps,
                                                           .log_every = flags.log_every,
                                                           .ledger = &context->ledger()}));
  if (!corpus.notice().empty()) OkOrThrow(metrics->Note("note: " + corpus.notice()));
  OkOrThrow(metrics->Note("text: " + corpus.description()));
  OkOrThrow(metrics->Note("model: GPT-2, " + FormatThousands(model.num_parameters()) +
                          " parameters, " + flags.plugin.precision + ", " +
                          std::to_string(flags.threads) + " threads"));

  int64_t micro = 0;
  StepEvent event;
  for (auto& batch : *boosted.loader) {
    Tensor loss = boosted.criterion(boosted.model(batch.inputs), batch.targets);
    loss = autograd::Scale(loss, 1.0 / static_cast<double>(flags.accumulate));
    event.loss += loss.Item();
    event.tokens += batch.inputs.numel();
    APOGEE_CHECK(std::isfinite(event.loss), "step ", event.step + 1, ": the loss is ",
                 std::isnan(event.loss) ? "nan" : "infinite", "; lower --lr (now ", flags.lr,
                 ") or --max-norm (now ", flags.plugin.max_norm, ")");
    booster.backward(loss, boosted.optimizer);
    if (++micro % flags.accumulate != 0) continue;

    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    event.step = micro / flags.accumulate;
    event.lr = boosted.scheduler->last_lr()[0];
    event.grad_norm = boosted.optimizer.last_step().grad_norm;
    OkOrThrow(metrics->Step(event));
    if (boosted.optimizer.last_step().skip) {
      OkOrThrow(metrics->Note(
          "step " + std::to_string(event.step) + " changed nothing: the gradient of " +
          boosted.optimizer.last_step().nonfinite_parameter + " is not finite"));
    }
    boosted.scheduler->step();
    event = {.step = event.step};
  }

  OkOrThrow(metrics->Validation(Validate(boosted, corpus, flags, context)));
  const std::string sample = Generate(boosted.model, context, flags.prompt,
                                      {.block = flags.model.n_positions,
                                       .bytes = flags.sample,
                                       .temperature = flags.temperature,
                                       .seed = flags.seed});
  OkOrThrow(metrics->Note("sample:\n" + sample));
  const int64_t process = ValueOrThrow(ReadProcessMemory()).peak_own_bytes() - start.own_bytes();
  OkOrThrow(metrics->Note("peak memory: " + FormatBytes(context->ledger().peak_reserved_bytes()) +
                          " by the ledger, " + FormatBytes(process) +
                          " by the process beyond its start"));
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Flags flags;
  if (const std::optional<int> exit_code = ParseFlags(argc, argv, flags)) return *exit_code;
  try {
    Train(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "01_train_gpt: %s\n", error.what());
    return 1;
  }
  return 0;
}
