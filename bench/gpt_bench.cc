// SPDX-License-Identifier: Apache-2.0

// Trains the GPT of compare_pytorch.py on random tokens and prints one JSON line: the speed, and
// how the time of a step is divided.
//
//   gpt_bench --precision bf16 --threads 2 --steps 5
//
// The share of each kind of work is measured inside this process: a wrapper around every slot of
// the CPU kernel table times the original. `attention` is the fused kernel, products and softmax
// together. `optimizer` is step(). `rest` is everything else; its kernels are listed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process_memory.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/kernel_table.h"

using namespace apogee;

namespace {

constexpr int64_t kLayers = 6, kDim = 384, kHeads = 6, kBlock = 256, kBatch = 8, kVocab = 4096;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Kernels are numbered in the order of the table.
enum KernelIndex : size_t {
#define APOGEE_KERNEL_INDEX(name, Args) kIndex_##name,
  APOGEE_FOR_EACH_KERNEL(APOGEE_KERNEL_INDEX)
#undef APOGEE_KERNEL_INDEX
      kNumKernels
};
constexpr const char* kKernelNames[] = {
#define APOGEE_KERNEL_NAME(name, Args) #name,
    APOGEE_FOR_EACH_KERNEL(APOGEE_KERNEL_NAME)
#undef APOGEE_KERNEL_NAME
};

// The rank's own thread calls the kernels, one at a time.
std::array<double, kNumKernels> kernel_seconds{};

const KernelTable& TimedKernelTable() {
  static const KernelTable table = [] {
    KernelTable timed;
#define APOGEE_TIME_SLOT(name, Args)                                \
  timed.name = [](const DeviceContext& context, const Args& args) { \
    const Clock::time_point start = Clock::now();                   \
    CpuKernelTable().name(context, args);                           \
    kernel_seconds[kIndex_##name] += SecondsSince(start);           \
  };
    APOGEE_FOR_EACH_KERNEL(APOGEE_TIME_SLOT)
#undef APOGEE_TIME_SLOT
    return timed;
  }();
  return table;
}

Tensor RandomTokens(const std::string& name, const ContextPtr& context) {
  std::vector<int64_t> tokens(kBatch * kBlock);
  const PhiloxKey key = MakeKey(1, name);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = Philox(key, i)[0] % kVocab;
  return Tensor::FromVector<int64_t>(tokens, {kBatch, kBlock}, context);
}

struct Timing {
  std::vector<double> steps;
  double optimizer = 0;
  double first_loss = 0, last_loss = 0;
};

Timing TrainSteps(const TrainingOptions& training, const ContextPtr& context, int64_t warmup,
                  int64_t num_steps) {
  nn::Gpt2 model({.vocab_size = kVocab,
                  .n_positions = kBlock,
                  .n_embd = kDim,
                  .n_layer = kLayers,
                  .n_head = kHeads});
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  SingleRankPlugin plugin(training);
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const Tensor inputs = RandomTokens("inputs", context), targets = RandomTokens("targets", context);

  Timing timing;
  for (int64_t step = 0; step < warmup + num_steps; ++step) {
    if (step == warmup) {
      kernel_seconds = {};
      timing.optimizer = 0;
    }
    const Clock::time_point start = Clock::now();
    const Tensor loss = boosted.criterion(boosted.model(inputs), targets);
    booster.backward(loss, boosted.optimizer);
    const Clock::time_point update = Clock::now();
    boosted.optimizer.step();
    timing.optimizer += SecondsSince(update);
    boosted.optimizer.zero_grad();
    timing.last_loss = loss.Item();
    if (step == 0) timing.first_loss = timing.last_loss;
    if (step >= warmup) timing.steps.push_back(SecondsSince(start));
  }
  return timing;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

void Print(const Timing& timing, const MemoryLedger& ledger, int64_t process_bytes) {
  double total = 0;
  for (const double seconds : timing.steps) total += seconds;
  const double products = kernel_seconds[kIndex_matmul] / total;
  const double attention =
      (kernel_seconds[kIndex_attention_forward] + kernel_seconds[kIndex_attention_backward]) /
      total;
  const double optimizer = timing.optimizer / total;
  std::printf("{\"tokens_per_s\": %.1f, \"first_loss\": %.5f, \"last_loss\": %.5f, ",
              static_cast<double>(kBatch * kBlock) / Median(timing.steps), timing.first_loss,
              timing.last_loss);
  // The memory that the ledger took from the operating system, and the process's growth since the
  // start according to the operating system.
  std::printf("\"ledger_bytes\": %lld, \"process_bytes\": %lld, ",
              static_cast<long long>(ledger.peak_reserved_bytes()),
              static_cast<long long>(process_bytes));
  std::printf(
      "\"shares\": {\"products\": %.4f, \"attention\": %.4f, \"optimizer\": %.4f, \"rest\": "
      "%.4f}, ",
      products, attention, optimizer, 1 - products - attention - optimizer);
  // Fused attention is partly products: the true share of products lies between these two.
  std::printf("\"outside_products\": %.4f, \"outside_products_strict\": %.4f, \"kernels\": {",
              1 - products - attention, 1 - products);
  const char* separator = "";
  for (size_t i = 0; i < kNumKernels; ++i) {
    if (kernel_seconds[i] == 0) continue;
    std::printf("%s\"%s\": %.4f", separator, kKernelNames[i], kernel_seconds[i] / total);
    separator = ", ";
  }
  std::printf("}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  std::string precision = "f32";
  bool bf16_residual = false;
  int threads = 1;
  int64_t steps = 5, warmup = 2;
  CLI::App app("Speed of training a small GPT, and where the time goes.");
  app.add_option("--precision", precision, "f32, bf16 or f64")->capture_default_str();
  app.add_flag("--bf16-residual", bf16_residual, "Under bf16, a residual stream of bf16");
  app.add_option("--threads", threads, "CPU threads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed steps")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--warmup", warmup, "Steps before the timed ones")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const int64_t start_bytes = ValueOrThrow(ReadProcessMemory()).own_bytes();
    const auto context = std::make_shared<DeviceContext>(Device{}, std::make_unique<CpuAllocator>(),
                                                         TimedKernelTable(), threads);
    const Timing timing = TrainSteps(
        {.precision = ValueOrThrow(ParsePrecision(precision)), .f32_residual = !bf16_residual},
        context, warmup, steps);
    Print(timing, context->ledger(),
          ValueOrThrow(ReadProcessMemory()).peak_own_bytes() - start_bytes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
