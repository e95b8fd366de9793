// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "apogee/bench/gpu/commands.h"
#include "apogee/bench/gpu/kernel_times.h"
#include "apogee/bench/median.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/graphed_step.h"
#include "apogee/core/status.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/single_rank.h"

namespace apogee::bench {

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
  const auto num_tokens = static_cast<double>(flags.batch * flags.block);
  // Per token: 6 flops per parameter and 12 L d T for attention, without a discount for the causal
  // mask.
  const double flops =
      num_tokens * (6.0 * static_cast<double>(model.num_parameters()) +
                    12.0 * static_cast<double>(config.n_layer * config.n_embd * flags.block));
  // `compute`: forward and backward, returns the loss.
  double loss_value = 0;
  const auto step = [&](const std::function<Tensor()>& compute) {
    const Tensor loss = compute();
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    loss_value = loss.Item();
  };
  const auto eager = [&] {
    const Tensor loss = boosted.criterion(boosted.model(inputs), targets);
    booster.backward(loss, boosted.optimizer);
    return loss.Detach();
  };
  // The host's clock: a step is more than its kernels.
  const auto measure = [&](const std::function<Tensor()>& compute) {
    for (int i = 0; i < 3; ++i) step(compute);  // a graph is captured in the second one
    context->ledger().ResetPeaks();
    std::vector<double> times;
    for (int64_t i = 0; i < flags.steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      step(compute);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      times.push_back(time.count());
    }
    const double seconds = Median(times);
    JsonLine line("gpt");
    line.Text("name", flags.graphed ? "graphed" : "eager").Text("dtype", flags.precision);
    line.Integer("batch", flags.batch).Integer("block", flags.block);
    line.Number("tokens_per_s", num_tokens / seconds);
    line.Number("tflop_per_s", flops / seconds / 1e12);
    line.Integer("peak_bytes", context->ledger().peak_reserved_bytes());
    line.Number("loss", loss_value);
  };
  if (flags.graphed) {
    GraphedMicroStep micro_step(booster, boosted.model, boosted.criterion, boosted.optimizer);
    // On the host, as a loader would give it: the copy then needs no synchronisation.
    const data::Batch batch{inputs.ToHost(), targets.ToHost()};
    measure([&] { return micro_step.Run(batch); });
    return;
  }
  measure(eager);
  KernelTimes kernels(context);
  for (int i = 0; i < 5; ++i) kernels.Run([&] { step(eager); });
  for (const auto& [name, seconds] : kernels.Medians()) {
    JsonLine("gpt_kernel").Text("name", name).Number("ms", seconds * 1e3);
  }
}

}  // namespace apogee::bench
