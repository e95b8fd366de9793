// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/plan.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "apogee/booster/booster.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/registry.h"

namespace apogee::plan {
namespace {

constexpr int kNumSteps = 2;

// The ordinary loop of one rank.
void Train(const TrainingSetup& setup, const Candidate& candidate, const comm::World& world,
           const std::function<void()>& before_last_step) {
  const PluginRegistry registry;
  const std::unique_ptr<Plugin> plugin =
      ValueOrThrow(registry.Make(candidate.plugin, world, setup.training, candidate.options));
  const std::unique_ptr<nn::Module> model = setup.make_model(setup.recompute);
  model->InitializeLazily(world.context(), {.seed = 1});
  const std::unique_ptr<optim::Optimizer> optimizer = ValueOrThrow(optim::BuiltInOptimizers().Make(
      setup.optimizer, model->Parameters(), setup.optimizer_options));
  Booster booster(*plugin);
  const Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
  const bool pipelined = candidate.pp > 1;
  const int64_t micro_batches = pipelined ? 1 : setup.accumulate;
  const int64_t samples = setup.batch / candidate.dp() / micro_batches;
  const std::vector<int64_t> ids(static_cast<size_t>(samples * setup.tokens));
  for (int step = 0; step < kNumSteps; ++step) {
    if (step + 1 == kNumSteps) before_last_step();
    const Accumulation window = booster.accumulate(micro_batches);
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      const Shape shape{samples, setup.tokens};
      const data::Batch batch{Tensor::FromVector(ids, shape, world.context()),
                              Tensor::FromVector(ids, shape, world.context())};
      if (pipelined) {
        booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
      } else {
        booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
                         boosted.optimizer);
      }
    }
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
}

PlanRow Price(const TrainingSetup& setup, const Candidate& candidate, const PlanOptions& options) {
  PlanRow row{.candidate = candidate, .refusal = Misfit(candidate, setup)};
  if (!row.refusal.empty()) return row;
  std::map<int, comm::Traffic> last_step;  // of the ranks that have begun it
  std::mutex mutex;
  const auto run = [&](comm::World& world) {
    Train(setup, candidate, world, [&] {
      const std::lock_guard lock(mutex);
      last_step.try_emplace(world.rank());
    });
  };
  const auto count = [&](int rank, const comm::CollectiveCall& call) {
    const std::lock_guard lock(mutex);
    const auto found = last_step.find(rank);
    if (found != last_step.end()) found->second.Add(call.kind, call.payload_bytes);
  };
  auto ranks = DryRun({.num_ranks = candidate.num_ranks,
                       .threads_per_rank = options.threads_per_rank,
                       .ranks = candidate.Roles(),
                       .stand_in = [&](int rank) { return candidate.RoleOf(rank); },
                       .on_call = count},
                      run);
  if (!ranks.ok()) {
    row.refusal = Message(ranks.status());
    return row;
  }
  row.ranks = *std::move(ranks);
  row.largest = *std::ranges::max_element(
      row.ranks, {}, [](const RankPlan& rank) { return rank.memory.peak_reserved_bytes; });
  for (const auto& [rank, traffic] : last_step) {
    row.collectives = std::max(row.collectives, traffic.total_calls());
    row.bytes = std::max(row.bytes, traffic.total_bytes());
  }
  row.fits = options.device_bytes == 0 || row.peak_bytes() <= options.device_bytes;
  return row;
}

// Trains the steps of a row for real.
void Measure(const TrainingSetup& setup, const PlanOptions& options, PlanRow& row) {
  const std::vector<int> roles = row.candidate.Roles();
  std::mutex mutex;
  const auto run = [&](comm::World& world) {
    Train(setup, row.candidate, world, [] {});
    if (!std::ranges::binary_search(roles, world.rank())) return;
    const std::lock_guard lock(mutex);
    row.measured.push_back(
        {.rank = world.rank(), .memory = world.context()->ledger().figures(), .traffic = {}});
  };
  const absl::Status status = comm::launch({.num_ranks = row.candidate.num_ranks,
                                            .threads_per_rank = options.threads_per_rank,
                                            .comm = comm::Backend::kLocal},
                                           run);
  std::ranges::sort(row.measured, {}, &RankPlan::rank);
  if (!status.ok()) row.refusal = "the real run failed: " + Message(status);
}

std::vector<PlanRow> PriceAll(const TrainingSetup& setup, const std::vector<Candidate>& candidates,
                              const PlanOptions& options) {
  std::vector<PlanRow> rows(candidates.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < candidates.size(); i = next++) {
      rows[i] = Price(setup, candidates[i], options);
    }
  };
  std::vector<std::future<void>> others;
  const int jobs = options.jobs > 0 ? options.jobs : ShareOfCores(1);
  for (int j = 1; j < jobs; ++j) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
  return rows;
}

struct Change {
  std::string text;
  TrainingSetup setup;
  int num_ranks;
  bool offload = false;
};

// From the smallest to the largest.
std::vector<Change> ChangesOf(const TrainingSetup& setup, int num_ranks) {
  TrainingSetup recomputed = setup, accumulated = setup;
  recomputed.recompute = setup.can_recompute;
  if (setup.batch % num_ranks == 0) {
    accumulated.accumulate = std::max(setup.accumulate, setup.batch / num_ranks);
  }
  TrainingSetup both = recomputed;
  both.accumulate = accumulated.accumulate;
  const std::string accumulate = "accumulate " + std::to_string(accumulated.accumulate);
  std::string all = recomputed.recompute ? "recompute" : "";
  std::vector<Change> changes;
  if (recomputed.recompute && !setup.recompute) {
    changes.push_back({"recompute", recomputed, num_ranks});
  }
  if (accumulated.accumulate > setup.accumulate) {
    changes.push_back({accumulate, accumulated, num_ranks});
    all += (all.empty() ? "" : " and ") + accumulate;
    changes.push_back({all, both, num_ranks});
  }
  const std::string with = all.empty() ? "" : all + " and ";
  changes.push_back({with + "offload", both, num_ranks, true});
  for (int factor = 2; factor <= 8; factor *= 2) {
    changes.push_back(
        {with + std::to_string(num_ranks * factor) + " ranks", both, num_ranks * factor});
  }
  return changes;
}

// The candidates that come nearest to fitting: a change is tried with these.
std::vector<Candidate> Nearest(const std::vector<PlanRow>& rows) {
  constexpr size_t kMost = 2;
  std::vector<const PlanRow*> priced;
  for (const PlanRow& row : rows) {
    if (row.refusal.empty()) priced.push_back(&row);
  }
  std::ranges::sort(priced, {}, &PlanRow::peak_bytes);
  std::vector<Candidate> nearest;
  for (const PlanRow* row : priced) {
    if (nearest.size() < kMost) nearest.push_back(row->candidate);
  }
  return nearest;
}

void FindChange(PlanReport& report) {
  const std::vector<Candidate> nearest = Nearest(report.rows);
  const auto is_far = [&](const Candidate& candidate) {
    return std::ranges::none_of(nearest, [&](const Candidate& other) {
      return candidate.plugin == other.plugin && candidate.pp == other.pp &&
             candidate.tp == other.tp;
    });
  };
  for (const Change& change : ChangesOf(report.setup, report.options.num_ranks)) {
    std::vector<Candidate> candidates = Candidates(change.setup, change.num_ranks, change.offload);
    if (!change.offload) std::erase_if(candidates, is_far);
    const std::vector<PlanRow> rows = PriceAll(change.setup, candidates, report.options);
    const auto found = std::ranges::find_if(rows, &PlanRow::fits);
    if (found == rows.end()) continue;
    report.change = change.text;
    report.changed = change.setup;
    report.changed_row = *found;
    return;
  }
}

}  // namespace

bool PlanReport::fits() const { return std::ranges::any_of(rows, &PlanRow::fits); }

absl::StatusOr<PlanReport> Plan(const TrainingSetup& setup, const PlanOptions& options) {
  APOGEE_RETURN_IF_ERROR(CheckSetup(setup));
  if (options.num_ranks < 1 || options.num_ranks > kMaxRanks) {
    return InvalidArgument("plan: the number of ranks must be from 1 to ", kMaxRanks, ", got ",
                           options.num_ranks);
  }
  if (options.device_bytes < 0) {
    return InvalidArgument("plan: the memory of a rank must be positive, or 0 if it is not known");
  }
  PlanReport report{.setup = setup, .options = options};
  report.num_parameters = setup.make_model(false)->num_parameters();
  std::vector<Candidate> candidates = Candidates(setup, options.num_ranks);
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return candidate.name.find(options.only) == std::string::npos;
  });
  if (candidates.empty()) {
    return InvalidArgument("plan: no plugin of those for ", options.num_ranks, " ranks has \"",
                           options.only, "\" in its name");
  }
  report.rows = PriceAll(setup, candidates, options);
  for (PlanRow& row : report.rows) {
    if (options.measure && row.refusal.empty()) Measure(setup, options, row);
  }
  if (!report.fits()) FindChange(report);
  return report;
}

}  // namespace apogee::plan
