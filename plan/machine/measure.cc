// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/machine/measure.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/optim/registry.h"
#include "apogee/plan/machine/samples.h"
#include "apogee/plan/train_steps.h"

namespace apogee::plan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 1;
constexpr int kMaxSteps = 12;
// Of the time asked for: then the remaining models are left out.
constexpr double kPatience = 2;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Shape {
  int64_t width, batch, tokens;
};

TrainingSetup SmallSetup(bool llama, const Shape& shape, const MeasureOptions& options) {
  const int64_t heads = std::max<int64_t>(2, shape.width / 64);
  std::string json;
  if (llama) {
    json = internal::Concat(
        R"({"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": false)",
        R"(, "num_hidden_layers": 2, "vocab_size": 1024, "num_attention_heads": )", heads,
        R"(, "num_key_value_heads": )", heads / 2, R"(, "hidden_size": )", shape.width,
        R"(, "intermediate_size": )", shape.width * 8 / 3 / 8 * 8,
        R"(, "max_position_embeddings": )", shape.tokens, "}");
  } else {
    json = internal::Concat(R"({"model_type": "gpt2", "n_layer": 2, "vocab_size": 256)",
                            R"(, "n_positions": )", shape.tokens, R"(, "n_head": )", heads,
                            R"(, "n_embd": )", shape.width, "}");
  }
  TrainingSetup setup = ValueOrThrow(SetupOfConfig(json, "a small model"));
  setup.batch = shape.batch;
  setup.tokens = shape.tokens;
  setup.training.precision = options.precision;
  setup.training.max_norm = 1;
  return setup;
}

// The most valuable first: time may run out.
std::vector<TrainingSetup> SetupsOf(const MeasureOptions& options) {
  std::vector<TrainingSetup> setups;
  for (const Shape& shape : {Shape{64, 4, 64}, Shape{256, 2, 128}, Shape{128, 8, 128},
                             Shape{512, 2, 256}, Shape{64, 16, 256}, Shape{32, 2, 32}}) {
    for (const bool llama : {false, true}) setups.push_back(SmallSetup(llama, shape, options));
  }
  if (options.setup != nullptr) {
    setups.push_back(*options.setup);
    setups.back().batch = setups.back().accumulate = 1;
  }
  for (const std::string& optimizer : optim::OptimizerNames()) {
    for (const int64_t width : {64, 256}) {
      setups.push_back(SmallSetup(true, {width, 1, 32}, options));
      setups.back().optimizer = optimizer;
      // For GaLore: matrices here are small.
      const optim::OptionMap known = ValueOrThrow(optim::OptimizerDefaults(optimizer));
      if (known.contains("clamp_rank")) setups.back().optimizer_options["clamp_rank"] = "true";
    }
  }
  return setups;
}

// One rank alone, as others train beside it.
void TrainAlone(const TrainingSetup& setup, const comm::World& world, double limit_seconds,
                Samples& samples) {
  comm::World alone(0, 1, world.context(), {});
  const Clock::time_point start = Clock::now();
  struct OutOfTime {};
  try {
    TrainSteps(setup, {.plugin = "single"}, alone, kMaxSteps, [&](int step) {
      if (step > kWarmUps + 1 && Since(start) > limit_seconds) throw OutOfTime();
      samples.Restart(step < kWarmUps);
    });
  } catch (const OutOfTime&) {
  }
}

ThreadsRate MeasureCollective(const std::function<void(int64_t)>& call) {
  std::vector<double> seconds[2];
  constexpr int64_t kSmall = 256, kLarge = 1 << 20;
  for (int i = 0; i < 12; ++i) {
    for (const int size : {0, 1}) {
      const Clock::time_point start = Clock::now();
      call(size == 0 ? kSmall : kLarge);
      if (i >= 2) seconds[size].push_back(Since(start));
    }
  }
  for (auto& times : seconds) std::ranges::sort(times);
  const double small = seconds[0][seconds[0].size() / 2], large = seconds[1][seconds[1].size() / 2];
  const auto bytes = static_cast<double>((kLarge - kSmall) * int64_t{sizeof(float)});
  return {.seconds_per_call = small, .seconds_per_byte = std::max(0.0, (large - small) / bytes)};
}

std::map<std::string, ThreadsRate> MeasureCollectives(comm::World& world) {
  using comm::CollectiveKind;
  comm::Group& group = *world.group();
  const int n = group.size();
  const int64_t most = (1 << 20) / n * n;
  const Tensor a = Tensor::Zeros({most}, DType::kF32, world.context());
  const Tensor b = Tensor::Zeros({most}, DType::kF32, world.context());
  const auto part = [&](const Tensor& x, int64_t numel) { return x.Slice(0, 0, numel); };
  std::map<std::string, ThreadsRate> rates;
  const auto measure = [&](CollectiveKind kind, const std::function<void(int64_t)>& call) {
    group.Barrier();
    rates[comm::CollectiveName(kind)] =
        MeasureCollective([&](int64_t numel) { call(numel / n * n); });
  };
  measure(CollectiveKind::kAllReduce, [&](int64_t numel) { group.AllReduce(part(a, numel)); });
  measure(CollectiveKind::kReduceScatter,
          [&](int64_t numel) { group.ReduceScatter(part(b, numel / n), part(a, numel)); });
  measure(CollectiveKind::kAllGather,
          [&](int64_t numel) { group.AllGather(part(b, numel), part(a, numel / n)); });
  measure(CollectiveKind::kBroadcast, [&](int64_t numel) { group.Broadcast(part(a, numel), 0); });
  measure(CollectiveKind::kReduce, [&](int64_t numel) { group.Reduce(part(a, numel), 0); });
  measure(CollectiveKind::kAllToAll,
          [&](int64_t numel) { group.AllToAll(part(b, numel), part(a, numel)); });
  measure(CollectiveKind::kBarrier, [&](int64_t) { group.Barrier(); });
  measure(CollectiveKind::kSend, [&](int64_t numel) {
    if (group.rank() == 0) group.Send(part(a, numel), 1);
    if (group.rank() == 1) group.Recv(part(b, numel), 0);
  });
  rates[comm::CollectiveName(CollectiveKind::kRecv)] =
      rates[comm::CollectiveName(CollectiveKind::kSend)];
  return rates;
}

// The median step of data-parallel ranks with two samples each.
absl::StatusOr<double> StepSeconds(const MeasureOptions& options, const Shape& shape, int ranks) {
  constexpr int kSteps = 8;
  TrainingSetup setup = SmallSetup(true, shape, options);
  setup.batch = 2 * ranks;
  const Candidate candidate{.plugin = ranks == 1 ? "single" : "ddp", .num_ranks = ranks};
  std::vector<double> seconds;
  const auto run = [&](comm::World& world) {
    Clock::time_point last = Clock::now();
    TrainSteps(setup, candidate, world, kSteps, [&](int step) {
      if (world.rank() != 0) return;
      if (step > kWarmUps) seconds.push_back(Since(last));
      last = Clock::now();
    });
  };
  APOGEE_RETURN_IF_ERROR(comm::launch(
      {.num_ranks = ranks, .threads_per_rank = options.threads, .comm = comm::Backend::kLocal},
      run));
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

// Machine::crowding: twice as many ranks against as many as the cores hold.
absl::StatusOr<double> MeasureCrowding(const MeasureOptions& options, int ranks) {
  double sum = 0;
  const Shape shapes[] = {{128, 2, 128}, {256, 2, 128}, {512, 2, 64}};
  for (const Shape& shape : shapes) {
    APOGEE_ASSIGN_OR_RETURN(const double alone, StepSeconds(options, shape, ranks));
    APOGEE_ASSIGN_OR_RETURN(const double crowded, StepSeconds(options, shape, 2 * ranks));
    sum += crowded / (2 * alone);
  }
  return std::max(1.0, sum / std::size(shapes));
}

absl::StatusOr<RateSet> MeasureSet(const MeasureOptions& options, int ranks, double seconds) {
  RateSet set{.ranks = ranks, .threads = options.threads, .precision = Name(options.precision)};
  const std::vector<TrainingSetup> setups = SetupsOf(options);
  const double limit = seconds / static_cast<double>(setups.size());
  const Clock::time_point start = Clock::now();
  std::atomic<size_t> end = setups.size();  // rank 0 decides for all, before a barrier
  const auto run = [&](comm::World& world) {
    Samples samples;
    world.context()->set_kernel_listener(&samples);
    for (size_t i = 0; i < setups.size(); ++i) {
      if (world.rank() == 0 && i > 0 && Since(start) > kPatience * seconds) end = i;
      if (world.group() != nullptr) world.group()->Barrier();
      if (i >= end) break;
      TrainAlone(setups[i], world, limit, samples);
    }
    world.context()->set_kernel_listener(nullptr);
    if (world.rank() == 0) samples.AddTo(set);
  };
  APOGEE_RETURN_IF_ERROR(comm::launch(
      {.num_ranks = ranks, .threads_per_rank = options.threads, .comm = comm::Backend::kLocal},
      run));
  const auto talk = [&](comm::World& world) {
    std::map<std::string, ThreadsRate> rates = MeasureCollectives(world);
    if (world.rank() == 0) set.collectives = std::move(rates);
  };
  APOGEE_RETURN_IF_ERROR(comm::launch({.num_ranks = std::max(2, ranks),
                                       .threads_per_rank = options.threads,
                                       .comm = comm::Backend::kLocal},
                                      talk));
  return set;
}

}  // namespace

absl::StatusOr<Rates> MeasureRates(const MeasureOptions& options) {
  Rates rates = RatesOfThisMachine();
  if (options.threads < 1 || options.threads > rates.cores) {
    return InvalidArgument("--measure: a rank of ", options.threads, " threads; this machine has ",
                           rates.cores, " cores");
  }
  std::vector<int> worlds = {1};
  if (rates.cores / options.threads > 1) worlds.push_back(rates.cores / options.threads);
  for (const int ranks : worlds) {
    APOGEE_ASSIGN_OR_RETURN(
        RateSet set,
        MeasureSet(options, ranks, options.seconds / static_cast<double>(worlds.size())));
    if (ranks == worlds.back()) {
      APOGEE_ASSIGN_OR_RETURN(set.crowding, MeasureCrowding(options, ranks));
    }
    rates.sets.push_back(std::move(set));
  }
  return rates;
}

}  // namespace apogee::plan
