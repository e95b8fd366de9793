// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/boosted_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/booster/booster.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/comm/dry/dry_launch.h"
#include "apogee/comm/some_ranks.h"
#include "apogee/matrix/optimizers.h"
#include "apogee/matrix/plain_run.h"
#include "apogee/matrix/plugins.h"
#include "apogee/matrix/rank_report.h"
#include "apogee/matrix/sabotage.h"
#include "apogee/matrix/workload.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"

namespace apogee::matrix {
namespace {

// Before these steps the run begins a window with the data of another step and discards it.
bool DiscardsBefore(int64_t step) { return step == 4 || step == 11; }
constexpr int64_t kDiscardedOffset = 7;

// A rank's traffic over all its groups.
struct Moved {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// The groups that the plugin gets: their traffic is counted, and the sabotage drop_collective
// removes their sums.
class Groups {
 public:
  Groups(const comm::World& world, Sabotage sabotage)
      : world_(world), drops_sums_(sabotage == Sabotage::kDropCollective) {}

  comm::GroupPtr Find(const std::vector<int>& members) {
    comm::GroupPtr& group = groups_[members];
    if (group == nullptr) {
      group = world_.NewGroup(members);
      if (drops_sums_) group = std::make_shared<UnsummedGroup>(group);
    }
    return group;
  }
  Moved moved() const {
    Moved moved;
    for (const auto& [members, group] : groups_) {
      moved.calls += group->traffic().total_calls();
      moved.bytes += group->traffic().total_bytes();
    }
    return moved;
  }

 private:
  const comm::World& world_;
  const bool drops_sums_;
  std::map<std::vector<int>, comm::GroupPtr> groups_;
};

// One rank's part of a run.
class RankRun {
 public:
  RankRun(const Cell& cell, Sabotage sabotage, const comm::World& world)
      : cell_(cell),
        sabotage_(sabotage),
        variant_(cell.catalog->FindPlugin(cell.plugin)),
        groups_(world, sabotage),
        world_(world.rank(), world.size(), world.context(),
               [this](const std::vector<int>& members) { return groups_.Find(members); }),
        workload_(cell.catalog->FindWorkload(cell.workload)),
        model_(workload_.MakeModel()) {
    // Other ranks start from other weights; boost must make them equal.
    model_->Initialize(world.context(), {.seed = world.rank() == 0 ? kSeed : 99,
                                         .dtype = InitialDType(cell.precision)});
    num_parameters_ = model_->num_parameters();
    optimizer_ = MakeMatrixOptimizer(cell, *model_);
    const TrainingOptions training{.precision = ValueOrThrow(ParsePrecision(cell.precision)),
                                   .max_norm = cell.clip ? workload_.max_norm() : 0,
                                   .bucket_bytes = workload_.bucket_bytes(),
                                   .loss_scaler = kLossScaler};
    made_ = variant_.make(
        world_,
        {.training = training, .num_parameters = num_parameters_, .plan = workload_.plan()});
    booster_ = std::make_unique<Booster>(*made_->plugin);
  }

  void Boost() {
    const Boosted boosted =
        booster_->boost(*model_, *optimizer_, {.criterion = workload_.criterion()});
    boosted_ = &boosted.optimizer;
    criterion_ = boosted.criterion;
    hybrid_ = made_->hybrid;
    gemini_ = hybrid_ != nullptr ? hybrid_->gemini() : made_->gemini;
    workload_.Prepare(
        {*model_, world_.context(), criterion_,
         [this](const autograd::Parameter& p, const Tensor& t) { return PartOf(p, t); }});
    if (sabotage_ == Sabotage::kLocalStats) boosted_->set_stat_reducer(nullptr);
    if (hybrid_ != nullptr) SabotageExperts(sabotage_, *model_, *boosted_, *hybrid_);
    SabotageAdapters(sabotage_, *model_, *made_->plugin, hybrid_);
    SabotageMatrices(sabotage_, *boosted_, made_->plugin->group());
  }

  void Train() {
    for (int64_t step = 0; step < kNumSteps; ++step) {
      // An update inside backward cannot be discarded.
      if (DiscardsBefore(step) && !UpdatesInBackward(*boosted_)) {
        Backward((step + kDiscardedOffset) % kNumSteps, 0, cell_.no_sync);
        boosted_->zero_grad();
      }
      const Moved before = AllMoved();
      for (int64_t micro = 0; micro < cell_.accumulate; ++micro) {
        const bool own_step = sabotage_ == Sabotage::kPerMicroBatch;
        Backward(step, micro, cell_.no_sync && micro + 1 < cell_.accumulate && !own_step);
        if (!own_step || micro + 1 == cell_.accumulate) continue;
        Step();
        boosted_->zero_grad();
      }
      Step();
      boosted_->zero_grad();
      const Moved after = AllMoved();
      last_step_ = {after.calls - before.calls, after.bytes - before.bytes};
    }
  }

  // True if the cell needs several backwards per step but the optimizer updates inside each.
  bool CannotAccumulate() const { return cell_.accumulate > 1 && UpdatesInBackward(*boosted_); }

  // Every rank calls.
  RankReport Report() {
    RankReport report{.num_skipped = boosted_->num_skipped_steps(),
                      .collectives = last_step_.calls,
                      .bytes = last_step_.bytes,
                      .state_bytes = StateBytes(),
                      .num_parameters = num_parameters_};
    for (const auto& p : model_->Parameters()) {
      report.weights[p->name()] = made_->plugin->WholeValue(*p).ToVector<double>();
    }
    if (!HasMasters(cell_)) return report;
    for (optim::ParamView& view : boosted_->views()) {
      if (!view.trainable()) continue;
      const auto segments = view.layout().segments();
      report.masters[view.name()] = {.whole_numel = view.layout().logical_shape().numel(),
                                     .segments = {segments.begin(), segments.end()},
                                     .values = view.master().ToVector<double>()};
    }
    return report;
  }

 private:
  // Not asked of the plugin, which could be wrong. The mesh is [pp, dp, sp, ep, tp].
  int data_rank() const {
    const int ep = variant_.ep, ep_rank = world_.rank() / variant_.tp % ep;
    return world_.rank() / (variant_.sp * ep * variant_.tp) * ep % data_size() + ep_rank;
  }
  int data_size() const { return world_.size() / variant_.ranks_per_sample(); }

  Moved AllMoved() const {
    Moved moved = groups_.moved();
    const comm::GroupPtr gathers = made_->plugin->gather_group();
    if (gathers == nullptr) return moved;
    return {moved.calls + gathers->traffic().total_calls(),
            moved.bytes + gathers->traffic().total_bytes()};
  }

  // This rank's tensor-parallel shard of a tensor of the parameter's logical shape.
  Tensor PartOf(const autograd::Parameter& parameter, const Tensor& whole) const {
    const auto* parallel = hybrid_ != nullptr ? hybrid_->tensor_parallel() : nullptr;
    const auto* shard = parallel != nullptr ? parallel->ShardOf(parameter) : nullptr;
    if (shard == nullptr) return whole;
    return nn::parallel::CutLocal(*shard, whole, world_.rank() % variant_.tp, variant_.tp);
  }

  // The elements in the parameter's data() on this rank; of a released parameter, its kept shard.
  Tensor KeptOf(const autograd::Parameter& parameter, const Tensor& whole) const {
    const Tensor part = PartOf(parameter, whole);
    if (!parameter.is_here()) return part.Contiguous().View({part.numel()}).Slice(0, 0, 0);
    if (parameter.is_local()) return part;
    const Layout layout = gemini_->LayoutOf(parameter);
    const Segment kept = layout.segments().empty() ? Segment{} : layout.segments()[0];
    return part.Contiguous().View({part.numel()}).Slice(0, kept.begin, kept.length);
  }

  int64_t StateBytes() const {
    int64_t bytes = 0;
    for (const optim::ParamView& view : boosted_->views()) {
      if (view.own_master().defined()) bytes += view.own_master().bytes();
      for (const optim::NamedState& state : view.states()) bytes += state.value.bytes();
    }
    return bytes;
  }

  // This rank's part of consecutive micro-batches, `count` samples of one call of execute_pipeline.
  data::Batch MicroBatches(int64_t step, int64_t call, int64_t count) const {
    const int64_t num = variant_.num_micro_batches, part = count / num;
    std::vector<Tensor> inputs, targets;
    for (int64_t m = call * num; m < (call + 1) * num; ++m) {
      const data::Batch batch = workload_.Batch(
          world_.context(),
          {.step = step, .first = (m * data_size() + data_rank()) * part, .count = part});
      inputs.push_back(batch.inputs);
      targets.push_back(batch.targets);
    }
    return {autograd::Concat(inputs, 0), autograd::Concat(targets, 0)};
  }

  void Backward(int64_t step, int64_t micro, bool hold_back) {
    const int64_t count = workload_.num_samples() / data_size() / cell_.accumulate;
    const int64_t place = cell_.shares_micro_batches() ? micro * data_size() + data_rank()
                                                       : data_rank() * cell_.accumulate + micro;
    const int64_t window = cell_.ignored ? count * data_size() : 0;
    const data::Batch batch = variant_.num_micro_batches > 1 && workload_.mixes_samples()
                                  ? MicroBatches(step, micro, count)
                                  : workload_.Batch(world_.context(), {.step = step,
                                                                       .first = place * count,
                                                                       .count = count,
                                                                       .ignoring_window = window});
    // One micro-step overflows, on one rank or on all ranks that train on the same samples.
    const bool overflows = cell_.precision == "fp16" && step == kOverflowStep &&
                           data_rank() == data_size() - 1 && micro == cell_.accumulate / 2;
    const Criterion criterion = [&](const Tensor& output, const Tensor& target) {
      Tensor loss = criterion_(output, target);
      if (overflows) loss = autograd::Scale(loss, kOverflowFactor);
      if (cell_.accumulate > 1) {
        loss = autograd::Scale(loss, 1.0 / static_cast<double>(cell_.accumulate));
      }
      return loss;
    };
    std::shared_ptr<void> hold;
    if (hold_back) hold = booster_->no_sync();
    const Auxiliary whole_auxiliary = workload_.Auxiliary();
    const Auxiliary auxiliary = [&](const std::vector<nn::Module*>& modules) {
      const Tensor loss = whole_auxiliary(modules);
      return loss.defined() ? autograd::Scale(loss, 1.0 / static_cast<double>(cell_.accumulate))
                            : loss;
    };
    if (variant_.pp > 1) {
      Booster::PipelineOptions options;
      if (whole_auxiliary != nullptr) options.auxiliary = auxiliary;
      booster_->execute_pipeline(batch, *model_, criterion, boosted_, options);
    } else {
      Tensor loss = criterion((*model_)(batch.inputs), batch.targets);
      if (whole_auxiliary != nullptr) loss = autograd::Add(loss, auxiliary({model_.get()}));
      booster_->backward(loss, *boosted_);
    }
  }

  void Step() {
    const bool updated = UpdatesInBackward(*boosted_) &&
                         std::ranges::none_of(boosted_->views(), &optim::ParamView::has_grad);
    if (sabotage_ == Sabotage::kNoneAsZero && !updated) FillAbsentGradients(*boosted_);
    if (sabotage_ == Sabotage::kNoUpdate && !updated) return;
    if (sabotage_ == Sabotage::kUpdateClipped) return StepWithClippedUpdate(*boosted_);
    boosted_->step();
    // If backward has updated already, go back to the first weights.
    if (sabotage_ == Sabotage::kNoUpdate) {
      const std::unique_ptr<nn::Module> start = workload_.MakeModel();
      start->Initialize(world_.context(), {.seed = kSeed, .dtype = InitialDType(cell_.precision)});
      for (const auto& parameter : model_->Parameters()) {
        const Tensor& whole = start->FindParameter(parameter->name())->data();
        parameter->data().CopyFrom(KeptOf(*parameter, whole));
      }
      boosted_->RefreshMasters();
    }
  }

  const Cell& cell_;
  const Sabotage sabotage_;
  const PluginVariant& variant_;
  Groups groups_;
  const comm::World world_;
  const Workload& workload_;
  std::unique_ptr<nn::Module> model_;
  int64_t num_parameters_ = 0;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<MadePlugin> made_;
  std::unique_ptr<Booster> booster_;
  optim::Optimizer* boosted_ = nullptr;
  Criterion criterion_;
  // Set if the plugin is a hybrid one.
  const HybridParallelPlugin* hybrid_ = nullptr;
  const GeminiPlugin* gemini_ = nullptr;  // the plugin itself or the hybrid plugin's
  Moved last_step_;
};

}  // namespace

BoostedResult BoostedRun(const Cell& cell, Sabotage sabotage) {
  BoostedResult result;
  std::vector<RankReport> reports(static_cast<size_t>(cell.world));
  result.status = comm::LaunchSome({.num_ranks = cell.world,
                                    .threads_per_rank = 1,
                                    .device = cell.device,
                                    .comm = cell.comm,
                                    .timeout_seconds = 30},
                                   [&](comm::World& world) {
                                     RankReport& report =
                                         reports[static_cast<size_t>(world.rank())];
                                     RankRun run(cell, sabotage, world);
                                     try {
                                       run.Boost();
                                     } catch (const Error&) {
                                       report.refused = true;
                                       throw;
                                     }
                                     try {
                                       run.Train();
                                     } catch (const Error&) {
                                       report.refused = run.CannotAccumulate();
                                       throw;
                                     }
                                     report = run.Report();
                                   });
  ShareReports(reports);
  result.refused = std::ranges::any_of(reports, &RankReport::refused);
  if (!result.status.ok()) return result;
  try {
    MergeReports(reports, result);
  } catch (const Error& error) {
    result.status = absl::InternalError(error.what());
  }
  return result;
}

namespace {

// `figures`: one per rank.
auto TrainAndNote(const Cell& cell, std::vector<MemoryFigures>& figures) {
  figures.resize(static_cast<size_t>(cell.world));
  return [&](comm::World& world) {
    RankRun run(cell, Sabotage::kNone, world);
    run.Boost();
    run.Train();
    figures[static_cast<size_t>(world.rank())] = world.context()->ledger().figures();
  };
}

}  // namespace

absl::StatusOr<std::vector<MemoryFigures>> MeasuredMemory(const Cell& cell) {
  std::vector<MemoryFigures> figures;
  APOGEE_RETURN_IF_ERROR(
      comm::launch({.num_ranks = cell.world, .threads_per_rank = 1, .comm = comm::Backend::kLocal},
                   TrainAndNote(cell, figures)));
  return figures;
}

absl::StatusOr<std::vector<MemoryFigures>> PricedMemory(const Cell& cell) {
  std::vector<MemoryFigures> figures;
  APOGEE_RETURN_IF_ERROR(comm::DryLaunch({.num_ranks = cell.world}, TrainAndNote(cell, figures)));
  return figures;
}

}  // namespace apogee::matrix
