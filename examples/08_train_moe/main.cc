// SPDX-License-Identifier: Apache-2.0

// Trains a mixture of experts on text, and shows how many tokens each expert gets. Copy this
// program for a model with experts: the loop adds their auxiliary loss to the criterion's, and
// MoeHybridParallelPlugin spreads them over --ep ranks.
//
//   08_train_moe --out out                            # 4 ranks: ep 2, dp 2, ZeRO 1
//   08_train_moe --ranks 1 --ep 1                     # the same training on one rank
//   08_train_moe --ranks 8 --ep 4 --tp 2 --experts 16 --top-k 4
#include <string>

#include "apogee/apogee.h"
#include "apogee/driver/expert_loads.h"
#include "apogee/driver/reports.h"
#include "apogee/driver/text_run.h"
#include "apogee/nn/models/decoder.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/plugins/moe_hybrid_parallel.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  int64_t layers = 4, heads = 4, dim = 128;
  nn::MoeConfig experts = {.num_experts = 8,
                           .top_k = 2,
                           .intermediate_size = 176,
                           .normalise = true,
                           .balance = nn::BalanceLoss::kMicroBatch,
                           .balance_coefficient = 0.01};
  HybridParallelOptions parallel = {.ep_size = 2, .stage = 1};
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.block = 64;
  flags.steps = 300;
  flags.ranks = 4;
  flags.batch = 16;
  flags.lr = 2e-3;
  flags.log_every = 50;
  flags.Declare(line);
  line.Group("Model");
  line.AddCount("--layers", flags.layers, "Transformer blocks, each with experts");
  line.AddCount("--heads", flags.heads, "Attention heads");
  line.AddCount("--dim", flags.dim, "Width; an even multiple of --heads");
  line.AddCount("--experts", flags.experts.num_experts, "Experts of a block");
  line.AddCount("--top-k", flags.experts.top_k, "Experts that each token takes");
  line.AddCount("--hidden", flags.experts.intermediate_size, "Width inside an expert");
  line.AddCount("--shared", flags.experts.shared_size,
                "Width inside the expert that every token takes; 0: there is none", 0);
  line.AddNumber("--balance", flags.experts.balance_coefficient,
                 "Coefficient of the auxiliary loss that keeps the experts' loads even");
  line.AddNumber("--z-loss", flags.experts.z_coefficient,
                 "Coefficient of the auxiliary loss that keeps the router's logits small");
  line.Group("Parallelism");
  line.AddCount("--ep", flags.parallel.ep_size,
                "Expert-parallel size: data-parallel ranks that share the experts of a block");
  line.AddCount("--tp", flags.parallel.tp_size, "Tensor-parallel size");
  line.AddCount("--zero", flags.parallel.stage,
                "ZeRO stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 (with "
                "--ep 1) also parameters",
                0);
}

// Mixtral's layers, on bytes.
nn::DecoderConfig ModelOf(const Flags& flags) {
  if (flags.dim % (2 * flags.heads) != 0) {
    Throw("--dim must be an even multiple of --heads, got ", flags.dim, " and ", flags.heads);
  }
  nn::DecoderConfig config{.model_type = "mixtral",
                           .vocab_size = 256,
                           .num_layers = flags.layers,
                           .max_tokens = flags.block};
  config.block = {.hidden_size = flags.dim,
                  .intermediate_size = flags.experts.intermediate_size,
                  .num_heads = flags.heads,
                  .num_kv_heads = flags.heads,
                  .head_dim = flags.dim / flags.heads,
                  .moe = flags.experts};
  return config;
}

// Checks the flags together. boost reports sizes that do not divide --ranks or --experts, together
// with everything else that does not fit.
void Settle(const Flags& flags) {
  const nn::Decoder model(ModelOf(flags));
  const comm::World one(0, 1, CpuContext(), nullptr);
  const MoeHybridParallelPlugin plugin(one, flags.training, flags.parallel);
  flags.CheckReplicas(flags.parallel.tp_size, "--ranks and --tp");
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  // Each rank makes only the values that it uses: no rank has all experts.
  nn::DecoderConfig config = ModelOf(flags);
  config.vocab_size = rank.corpus.tokenizer->vocab_size();
  nn::Decoder model(config);
  model.InitializeLazily(rank.world.context(), {.seed = flags.seed});
  const int64_t num_parameters = model.num_parameters();
  const auto optimizer = flags.MakeOptimizer(model.Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  MoeHybridParallelPlugin plugin(rank.world, flags.training, flags.parallel);
  Booster booster(plugin);
  driver::TextRun run(rank, flags, booster, plugin);
  Boosted boosted = booster.boost(model, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  const std::string layout = driver::DescribeMesh(rank.world, flags.parallel);
  if (!run.Start(boosted, scheduler, {"Mixtral", num_parameters, layout})) return 0;
  driver::ExpertLoads loads(rank, flags, boosted.model, plugin, run);

  const Accumulation window = booster.accumulate(flags.accumulate);
  for (auto& samples : run.samples()) {
    const Tensor loss = boosted.criterion(boosted.model(samples.inputs), samples.targets);
    loads.Count();
    // The balance of the experts is over the micro-batch of all ranks.
    booster.backward(autograd::Add(loss, nn::AuxiliaryLoss(boosted.model)), boosted.optimizer);
    if (!window.is_complete()) continue;
    run.BeforeStep(window.loss());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    const bool leave = run.AfterStep();
    loads.AfterStep(run);
    if (leave) return run.exit_code();
  }
  loads.WritePicture(run.step());
  run.Validate();
  run.ReportMemory();
  run.WriteSample();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "08_train_moe",
                      .about = "Trains a mixture of experts on text, with expert parallelism.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine&) { Settle(flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
