// SPDX-License-Identifier: Apache-2.0

// The cost of Muon on gpt_bench's GPT. Prints one JSON line.
//
//   muon_bench --rounds 5
//
// newton_schulz_rate    time of the same products alone over that of Newton-Schulz, for the
//                       model's matrices: median over rounds
// batch_gain            time of 64 matrices [64, 128], one by one, over that of all at once
// step_over_adamw_step  time of Muon's step() over a whole training step with AdamW
// rank_over_one         processor time in step() of the busiest of 4 ranks (zero1) over that of one
//                       rank, each on one thread
// state_bytes           of all matrices, per element
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <mutex>

#include "apogee/bench/train_steps.h"
#include "apogee/core/rng.h"
#include "apogee/optim/orthogonal/muon.h"
#include "apogee/optim/orthogonal/newton_schulz.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

constexpr int64_t kSizes[][2] = {
    {kDim, kDim}, {3 * kDim, kDim}, {4 * kDim, kDim}, {kDim, 4 * kDim}};
constexpr int64_t kNsSteps = 5;

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Tensor Random(int64_t rows, int64_t cols, const ContextPtr& context) {
  Tensor matrix = Tensor::Empty({rows, cols}, DType::kF32, context);
  ops::FillNormal(matrix, 0, 1, MakeKey(1, "muon_bench"));
  return matrix;
}

optim::NewtonSchulz Settings() {
  return {.coefficients = ValueOrThrow(optim::ParseCoefficients("simple", kNsSteps))};
}

// Seconds of `of` over those of `over`: the median of the turns.
template <typename Of, typename Over>
double TimeRatio(int rounds, const Of& of, const Over& over) {
  const auto timed = [](const auto& body) {
    return [&body] {
      const Clock::time_point start = Clock::now();
      body();
      return SecondsSince(start);
    };
  };
  of(), over();
  return Median(TakeTurns(rounds, timed(of), timed(over)).ratio);
}

// Time of the products alone over that of Newton-Schulz, of one matrix of every size.
double NewtonSchulzRate(int rounds, int threads) {
  const ContextPtr context = CpuContext({.num_threads = threads});
  std::vector<Tensor> matrices;
  for (const auto& [rows, cols] : kSizes) matrices.push_back(Random(rows, cols, context));
  const optim::NewtonSchulz settings = Settings();
  const auto iterate = [&] {
    for (const Tensor& matrix : matrices) std::ignore = optim::Orthogonalized(matrix, settings);
  };
  const auto multiply = [&] {
    for (const Tensor& matrix : matrices) {
      const bool tall = matrix.size(0) > matrix.size(1);
      const Tensor x = tall ? matrix.View({matrix.size(1), matrix.size(0)}) : matrix;
      for (int64_t i = 0; i < kNsSteps; ++i) {
        const Tensor gram = ops::MatMul(x, x, {.b_trans = true});
        const Tensor square = ops::MatMul(gram, gram);
        std::ignore = ops::MatMul(square, x);
      }
    }
  };
  return TimeRatio(rounds, multiply, iterate);
}

// Time of 64 small matrices one after the other over that of all at once.
double BatchGain(int rounds, int threads) {
  const ContextPtr context = CpuContext({.num_threads = threads});
  std::vector<Tensor> matrices;
  for (int i = 0; i < 64; ++i) matrices.push_back(Random(64, 128, context));
  const optim::NewtonSchulz settings = Settings();
  const auto alone = [&] {
    for (const Tensor& matrix : matrices) std::ignore = optim::Orthogonalized(matrix, settings);
  };
  const auto together = [&] {
    optim::Orthogonalize(matrices, settings, [](size_t, const Tensor&) {});
  };
  return TimeRatio(rounds, alone, together);
}

// A model in training under a plugin.
struct Trained {
  Trained(const ContextPtr& where, Plugin& plugin, bool muon)
      : context(where), booster(plugin), data_size(plugin.data_size()) {
    model.Initialize(context, {.seed = 1});
    if (muon) {
      optimizer = std::make_unique<optim::Muon>(model.Parameters(), optim::MuonOptions{});
    } else {
      optimizer = std::make_unique<optim::AdamW>(model.Parameters(), optim::AdamWOptions{});
    }
    boosted = std::make_unique<Boosted>(
        booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
    inputs = RandomTokens("inputs", plugin.data_rank(), kBatch / data_size, context);
    targets = RandomTokens("targets", plugin.data_rank(), kBatch / data_size, context);
  }
  void Backward() {
    booster.backward(boosted->criterion(boosted->model(inputs), targets), boosted->optimizer);
  }
  void Step() {
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }

  ContextPtr context;
  nn::Gpt2 model{ModelConfig()};
  Booster booster;
  int data_size;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Boosted> boosted;
  Tensor inputs, targets;
};

double StepOverAdamW(int rounds, int threads, double& state_bytes) {
  const ContextPtr context = CpuContext({.num_threads = threads});
  SingleRankPlugin plugin, other_plugin;
  Trained muon(context, plugin, true), adamw(context, other_plugin, false);
  const auto step = [&] {
    muon.Backward();
    const Clock::time_point start = Clock::now();
    muon.Step();
    return SecondsSince(start);
  };
  const auto whole = [&] {
    const Clock::time_point start = Clock::now();
    adamw.Backward();
    adamw.Step();
    return SecondsSince(start);
  };
  step(), whole();
  int64_t bytes = 0, elements = 0;
  for (const optim::ParamView& view : std::as_const(*muon.optimizer).views()) {
    if (!view.state("momentum_buffer").defined()) continue;
    elements += view.layout().logical_shape().numel();
    for (const optim::NamedState& state : view.states()) bytes += state.value.bytes();
  }
  state_bytes = static_cast<double>(bytes) / static_cast<double>(elements);
  return Median(TakeTurns(rounds, step, whole).ratio);
}

// Processor seconds in step() of the busiest of `num_ranks`.
double BusiestRank(int num_ranks, int rounds) {
  double busiest = 0;
  std::mutex mutex;
  OkOrThrow(comm::launch({.num_ranks = num_ranks, .threads_per_rank = 1}, [&](comm::World& world) {
    LowLevelZeroPlugin plugin(world.group(), {}, {.stage = 1});
    Trained muon(world.context(), plugin, true);
    std::vector<double> seconds;
    for (int i = 0; i <= rounds; ++i) {
      muon.Backward();
      const double start = ProcessorSeconds();
      muon.Step();
      if (i > 0) seconds.push_back(ProcessorSeconds() - start);
    }
    const std::lock_guard lock(mutex);
    busiest = std::max(busiest, Median(seconds));
  }));
  return busiest;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5, threads = 2;
  CLI::App app("The cost of Muon.");
  app.add_option("--rounds", rounds, "Turns of each")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", threads, "CPU threads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    double state_bytes = 0;
    const double rate = NewtonSchulzRate(rounds, threads);
    const double batch_gain = BatchGain(rounds, threads);
    const double step = StepOverAdamW(rounds, threads, state_bytes);
    const double one = BusiestRank(1, rounds), four = BusiestRank(4, rounds);
    std::printf(
        "{\"newton_schulz_rate\": %.3f, \"batch_gain\": %.3f, \"step_over_adamw_step\": %.3f, "
        "\"rank_over_one\": %.3f, \"state_bytes\": %.3f}\n",
        rate, batch_gain, step, four / one, state_bytes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muon_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
