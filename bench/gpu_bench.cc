// SPDX-License-Identifier: Apache-2.0

// Speed on a GPU, one JSON line per number; scripts/gpu_check.sh puts PyTorch's numbers next to
// them.
//
//   gpu_bench steps --params 500000000       # every optimizer's step, relative to copies
//   gpu_bench products                       # bf16 matrix products, teraflop/s
//   gpu_bench gpt --batch 16 --steps 20      # GPT-2 124M, tokens per second; then again with
//                                            # forward and backward as a CUDA graph
//
// Every command also works with --device cpu, to try the program, not to compare. A time is the
// median of --repeats repetitions, each between two synchronisations. The reference of `steps`,
// measured in the same run, is a copy within the GPU, which reads and writes each byte once.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "apogee/bench/cublas_alone.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/graphed_step.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/make_context.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"

using namespace apogee;

namespace {

struct Flags {
  std::string device = "cuda";
  int64_t repeats = 9;
  int64_t params = 500'000'000;
  int64_t batch = 16, block = 1024, steps = 20;
  std::string size = "124m";
  std::string precision = "bf16";
};

// Seconds per call.
double MedianSeconds(const DeviceContext& context, int64_t repeats,
                     const std::function<void()>& fn) {
  std::vector<double> times;
  for (int64_t repeat = -2; repeat < repeats; ++repeat) {  // two to warm up
    context.Synchronize();
    const auto start = std::chrono::steady_clock::now();
    fn();
    context.Synchronize();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (repeat >= 0) times.push_back(time.count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// Like a GPT: per layer weights of twelve d x d blocks, and vectors.
std::vector<autograd::ParameterPtr> MakeParameters(int64_t budget, DType dtype,
                                                   const ContextPtr& context) {
  const int64_t width = budget >= (1 << 26) ? 2048 : 64;
  std::vector<autograd::ParameterPtr> params;
  int64_t total = 0;
  const auto add = [&](const Shape& shape) {
    const auto count = params.size();
    params.push_back(std::make_shared<autograd::Parameter>(
        "p" + std::to_string(count), Tensor::Full(shape, dtype, 0.5, context)));
    params.back()->set_grad_dtype(dtype);
    params.back()->set_grad(Tensor::Full(shape, dtype, 0.01, context));
    total += shape.numel();
  };
  while (total + 12 * width * width <= budget || params.empty()) {
    for (const int64_t rows : {3 * width, width, 4 * width}) {
      add({rows, width});
      add({rows});
    }
    add({width, 4 * width});
    for (int k = 0; k < 5; ++k) add({width});
  }
  return params;
}

struct StepRow {
  const char* name;
  optim::OptionMap options;
  double bytes_f32, bytes_bf16;  // memory traffic of a step per parameter
  double max_norm = 0;           // clipping reads the gradients once more
};

void Steps(const Flags& flags, const ContextPtr& context) {
  // bf16: weights and gradients of 2 bytes, f32 masters and states.
  static const StepRow kRows[] = {{"sgd", {{"momentum", "0.9"}}, 20, 20},
                                  {"adamw", {}, 28, 28},
                                  {"adamw", {}, 32, 30, /*max_norm=*/1},
                                  {"lion", {}, 20, 20},
                                  {"lars", {}, 28, 26},
                                  {"lamb", {}, 44, 42},
                                  {"adafactor", {}, 24, 20},
                                  {"came", {}, 36, 32},
                                  {"scaled_adam", {}, 36, 34},
                                  {"adamw8bit", {}, 16, 16}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto params = MakeParameters(flags.params, dtype, context);
    int64_t n = 0;
    for (const auto& parameter : params) n += parameter->data().numel();
    const int64_t bytes = n * DTypeSize(dtype);
    const Tensor from = Tensor::Zeros({bytes}, DType::kU8, context);
    const Tensor to = Tensor::Empty({bytes}, DType::kU8, context);
    const double copy = MedianSeconds(*context, flags.repeats,
                                      [&] { context->CopyWithin(to.raw(), from.raw(), bytes); });
    const double copy_rate = 2 * static_cast<double>(bytes) / copy;
    for (const StepRow& row : kRows) {
      const auto optimizer = ValueOrThrow(optim::MakeOptimizer(row.name, params, row.options));
      optim::StepOptions step;
      step.max_norm = row.max_norm;
      step.nonfinite = optim::NonFinitePolicy::kProceed;
      optimizer->set_step_options(step);
      const double seconds = MedianSeconds(*context, flags.repeats, [&] { optimizer->step(); });
      const double moved = (dtype == DType::kF32 ? row.bytes_f32 : row.bytes_bf16);
      const double rate = moved * static_cast<double>(n) / seconds;
      std::printf(
          "{\"bench\": \"step\", \"optimizer\": \"%s%s\", \"dtype\": \"%s\", \"params\": %lld, "
          "\"ms\": %.4f, \"gb_per_s\": %.1f, \"copy_gb_per_s\": %.1f, \"share\": %.3f}\n",
          row.name, row.max_norm > 0 ? ", clipped" : "", DTypeName(dtype),
          static_cast<long long>(n), seconds * 1e3, rate / 1e9, copy_rate / 1e9, rate / copy_rate);
    }
  }
}

Tensor RandomMatrix(int64_t rows, int64_t cols, const ContextPtr& context) {
  const Tensor x = Tensor::Empty({rows, cols}, DType::kBF16, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, "products"));
  return x;
}

std::function<void()> CublasAloneOn([[maybe_unused]] const DeviceContext& context,
                                    [[maybe_unused]] const Tensor& a,
                                    [[maybe_unused]] const Tensor& b,
                                    [[maybe_unused]] const Tensor& c) {
#ifdef APOGEE_BENCH_CUBLAS
  if (context.device().type == DeviceType::kCuda) return CublasAlone(a, b, c);
#endif
  return nullptr;
}

void Products(const Flags& flags, const ContextPtr& context) {
  struct Product {
    const char* name;
    int64_t m, n, k;
  };
  const int64_t tokens = flags.batch * flags.block;
  const Product products[] = {{"square", 4096, 4096, 4096}, {"qkv", tokens, 2304, 768},
                              {"proj", tokens, 768, 768},   {"fc", tokens, 3072, 768},
                              {"out", tokens, 768, 3072},   {"head", tokens, 50304, 768}};
  for (const Product& p : products) {
    // Random numbers: with equal ones a GPU computes more products per second.
    const Tensor a = RandomMatrix(p.m, p.k, context), b = RandomMatrix(p.k, p.n, context);
    const auto seconds_of = [&](const std::function<void()>& product) {
      return MedianSeconds(*context, flags.repeats,
                           [&] {
                             for (int i = 0; i < 10; ++i) product();
                           }) /
             10;
    };
    const double seconds = seconds_of([&] { ops::MatMul(a, b); });
    const auto alone = CublasAloneOn(*context, a, b, ops::MatMul(a, b));
    const double alone_seconds = alone ? seconds_of(alone) : 0;
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    std::printf(
        "{\"bench\": \"product\", \"name\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, "
        "\"us\": %.2f, \"tflop_per_s\": %.1f, \"alone_us\": %.2f}\n",
        p.name, static_cast<long long>(p.m), static_cast<long long>(p.n),
        static_cast<long long>(p.k), seconds * 1e6, flops / seconds / 1e12, alone_seconds * 1e6);
  }
}

void Gpt(const Flags& flags, const ContextPtr& context) {
  const bool tiny = flags.size == "tiny";
  const nn::Gpt2Config config = {.vocab_size = tiny ? 256 : 50304,
                                 .n_positions = flags.block,
                                 .n_embd = tiny ? 32 : 768,
                                 .n_layer = tiny ? 2 : 12,
                                 .n_head = tiny ? 2 : 12};
  nn::Gpt2 model(config);
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  SingleRankPlugin plugin({.precision = ValueOrThrow(ParsePrecision(flags.precision))});
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  std::vector<int64_t> tokens(static_cast<size_t>(flags.batch * flags.block));
  const PhiloxKey key = MakeKey(1, "tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = Philox(key, i)[0] % static_cast<uint32_t>(config.vocab_size);
  }
  const Tensor inputs = Tensor::FromVector<int64_t>(tokens, {flags.batch, flags.block}, context);
  std::ranges::rotate(tokens, tokens.begin() + 1);
  const Tensor targets = Tensor::FromVector<int64_t>(tokens, {flags.batch, flags.block}, context);
  int64_t parameters = 0;
  for (const auto& parameter : model.Parameters()) parameters += parameter->data().numel();
  const auto num_tokens = static_cast<double>(flags.batch * flags.block);
  // Per token: 6 flops per parameter and 12 L d T for attention, without a discount for the causal
  // mask.
  const double flops =
      num_tokens * (6.0 * static_cast<double>(parameters) +
                    12.0 * static_cast<double>(config.n_layer * config.n_embd * flags.block));
  // `fields` come first in the row. `compute`: forward and backward, returns the loss.
  const auto measure = [&](const char* fields, const std::function<Tensor()>& compute) {
    context->ledger().ResetPeaks();
    double loss_value = 0;
    const double seconds = MedianSeconds(*context, flags.steps, [&] {
      const Tensor loss = compute();
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
      loss_value = loss.Item();
    });
    std::printf(
        "{\"bench\": \"gpt\", %s\"precision\": \"%s\", \"batch\": %lld, \"block\": %lld, "
        "\"tokens_per_s\": %.1f, \"tflop_per_s\": %.2f, \"peak_bytes\": %lld, \"loss\": %.4f}\n",
        fields, flags.precision.c_str(), static_cast<long long>(flags.batch),
        static_cast<long long>(flags.block), num_tokens / seconds, flops / seconds / 1e12,
        static_cast<long long>(context->ledger().peak_reserved_bytes()), loss_value);
  };
  measure("", [&] {
    const Tensor loss = boosted.criterion(boosted.model(inputs), targets);
    booster.backward(loss, boosted.optimizer);
    return loss.Detach();
  });
  if (context->device().type != DeviceType::kCuda) return;  // no graphs
  GraphedMicroStep micro_step(booster, boosted.model, boosted.criterion, boosted.optimizer);
  // On the host, as a loader would give it: the copy then needs no synchronisation.
  const data::Batch batch{inputs.ToHost(), targets.ToHost()};
  measure("\"name\": \"graphed\", ", [&] { return micro_step.Run(batch); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed on a GPU; one JSON line per number");
  Flags flags;
  app.add_option("--device", flags.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--repeats", flags.repeats, "Repetitions; the median counts")
      ->check(CLI::PositiveNumber);
  CLI::App* steps = app.add_subcommand("steps", "Optimizer steps against copies")->fallthrough();
  steps->add_option("--params", flags.params)->capture_default_str()->check(CLI::PositiveNumber);
  CLI::App* products = app.add_subcommand("products", "bf16 matrix products")->fallthrough();
  CLI::App* gpt = app.add_subcommand("gpt", "Training a GPT-2")->fallthrough();
  for (CLI::App* command : {products, gpt}) {
    command->add_option("--batch", flags.batch)->capture_default_str()->check(CLI::PositiveNumber);
    command->add_option("--block", flags.block)->capture_default_str()->check(CLI::PositiveNumber);
  }
  gpt->add_option("--steps", flags.steps)->capture_default_str()->check(CLI::PositiveNumber);
  gpt->add_option("--precision", flags.precision)->check(CLI::IsMember({"f32", "bf16", "fp16"}));
  gpt->add_option("--size", flags.size)->check(CLI::IsMember({"124m", "tiny"}));
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  try {
    const ContextPtr context =
        ValueOrThrow(MakeContext(ValueOrThrow(ParseDevice(flags.device)).For(0)));
    if (steps->parsed()) Steps(flags, context);
    if (products->parsed()) Products(flags, context);
    if (gpt->parsed()) Gpt(flags, context);
  } catch (const std::exception& error) {
    std::cerr << "gpu_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
