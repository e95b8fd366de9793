// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/plugins.h"

#include <algorithm>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"

namespace apogee::matrix {
namespace {

using nn::parallel::SequenceMode;
using pipeline::ScheduleKind;

MadePlugin MakeSingle(const comm::World& /*world*/, const PluginSettings& settings) {
  return std::make_unique<SingleRankPlugin>(settings.training);
}

MadePlugin MakeDdp(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<DdpPlugin>(world.group(), settings.training);
}

// One bucket, launched at the end of backward.
TrainingOptions Late(const PluginSettings& settings) {
  TrainingOptions training = settings.training;
  training.bucket_bytes = 1 << 20;
  training.overlap = false;
  return training;
}

MadePlugin MakeDdpLate(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<DdpPlugin>(world.group(), Late(settings));
}

MadePlugin MakeDdpReproducible(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<DdpPlugin>(world.group(), settings.training,
                                     DdpOptions{.reproducible = true});
}

using MakePlugin = std::function<MadePlugin(const comm::World&, const PluginSettings&)>;

MakePlugin MakeZero(const LowLevelZeroOptions& options) {
  return [options](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<LowLevelZeroPlugin>(world.group(), settings.training, options);
  };
}

MadePlugin MakeGemini(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<GeminiPlugin>(world.group(), settings.training);
}

// One chunk per parameter.
MadePlugin MakeGeminiSmall(const comm::World& world, const PluginSettings& settings) {
  TrainingOptions training = settings.training;
  training.bucket_bytes = 1;
  return std::make_unique<GeminiPlugin>(world.group(), training);
}

// One bucket, and no communication in the background.
MadePlugin MakeZero1Late(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), Late(settings), LowLevelZeroOptions{.stage = 1, .overlap_gather = false});
}

MadePlugin MakeZero2Late(const comm::World& world, const PluginSettings& settings) {
  TrainingOptions training = settings.training;
  training.overlap = false;
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), training, LowLevelZeroOptions{.stage = 2, .overlap_gather = false});
}

const std::vector<std::string>& AllPrecisions() {
  static const auto& all = *new std::vector<std::string>{"f32", "f64", "bf16", "fp16"};
  return all;
}

// For kAuto, half of the memory that a rank's part of the model needs with AdamW's states.
PlacementOptions PlacementOf(PlacementPolicy policy, int tp, const PluginSettings& settings) {
  if (policy != PlacementPolicy::kAuto) return {};
  const Precision precision = settings.training.precision;
  const int64_t element_bytes = precision == Precision::kF64   ? 32
                                : precision == Precision::kF32 ? 16
                                                               : 18;
  return {.placement_policy = policy,
          .device_budget_bytes = settings.num_parameters / tp * element_bytes / 2};
}

// Named "hybrid_tp2_zero1" and so on.
PluginVariant Hybrid(int tp, int stage, std::vector<int> worlds,
                     PlacementPolicy placement = PlacementPolicy::kStatic) {
  const auto make = [tp, stage, placement](const comm::World& world,
                                           const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, settings.training,
        HybridParallelOptions{.tp_size = tp,
                              .stage = stage,
                              .plan = settings.plan,
                              .placement = PlacementOf(placement, tp, settings)});
  };
  std::vector<std::string> workloads = {"fed", "gpt2_tied", "gpt2_untied", "llama_tied",
                                        "llama_untied"};
  // kAuto's budget holds no module that is half of the model.
  if (placement == PlacementPolicy::kStatic) {
    workloads.insert(workloads.end(), {"cnn", "encoder", "gru", "moe", "moe_idle"});
  }
  const std::string ranks = "tp" + std::to_string(tp);
  const std::string name =
      stage < 3
          ? "hybrid_" + ranks + "_zero" + std::to_string(stage)
          : "gemini_" + ranks +
                (placement == PlacementPolicy::kStatic ? "" : std::string("_") + Name(placement));
  return {.name = name,
          .worlds = std::move(worlds),
          .precisions = AllPrecisions(),
          .make = make,
          .tp = tp,
          .workloads = std::move(workloads),
          .is_hybrid = true};
}

// The mesh axes of a pipelined variant, other than dp.
struct PipelineAxes {
  int pp = 2, tp = 1, sp = 1;
  SequenceMode sp_mode = SequenceMode::kNone;  // of sp; with tp alone kSplitGather
};

// Named "hybrid_pp2_zbv_zero1" and so on; with other axes "hybrid_pp2_tp2_zbv_zero1".
PluginVariant Pipelined(ScheduleKind schedule, const PipelineAxes& axes, int stage,
                        std::vector<int> worlds) {
  // 4 divides 36 and 12 samples, so pp micro-batches all have the same size; only then are the
  // means of "fed" exact. Otherwise use 6 micro-batches, which divide 18 and 6 samples.
  const bool exact = axes.pp == 2 || worlds == std::vector<int>{4};
  const int num_micros = exact ? axes.pp : 6;
  const auto make = [=](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, settings.training,
        HybridParallelOptions{.tp_size = axes.tp,
                              .pp_size = axes.pp,
                              .sp_size = axes.sp,
                              .sp_mode = axes.sp_mode,
                              .stage = stage,
                              .plan = settings.plan,
                              .schedule = schedule,
                              .num_microbatches = num_micros});
  };
  std::string ranks = "pp" + std::to_string(axes.pp);
  if (axes.tp > 1) ranks += "_tp" + std::to_string(axes.tp);
  const bool cuts_sequences = axes.sp_mode != SequenceMode::kNone;
  if (cuts_sequences) ranks += std::string("_") + Name(axes.sp_mode);
  const bool alone = axes.tp == 1 && !cuts_sequences;
  std::vector<std::string> workloads = {"gpt2_deep", "llama_deep"};
  if (exact && !cuts_sequences) workloads.insert(workloads.begin(), "fed");
  if (axes.pp == 2 && !cuts_sequences) workloads.push_back("gru");
  return {.name = "hybrid_" + ranks + (exact ? "_" : "_dp2_") + Name(schedule) + "_zero" +
                  std::to_string(stage),
          .worlds = std::move(worlds),
          // In 16 bits, rounding in a deep, divided model can be as large as its update.
          .precisions = alone ? AllPrecisions() : std::vector<std::string>{"f32", "f64"},
          .make = make,
          .tp = axes.tp,
          .pp = axes.pp,
          .sp = axes.sp,
          .workloads = std::move(workloads),
          .is_hybrid = true};
}

void AppendPipelined(std::vector<PluginVariant>& variants) {
  int turn = 0;
  for (const ScheduleKind schedule :
       {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZbv}) {
    for (const int stage : {0, 1, 2}) {
      variants.push_back(Pipelined(schedule, {.pp = 2}, stage, {2, 4}));
      variants.push_back(Pipelined(schedule, {.pp = 4}, stage, {4}));
      variants.push_back(Pipelined(schedule, {.pp = 4}, stage, {8}));
      variants.push_back(Pipelined(schedule, {.pp = 2, .tp = 2}, stage, {4, 8}));
    }
    // Every mode with every schedule; ZeRO stages alternate.
    const PipelineAxes sequences[] = {
        {.pp = 2, .tp = 2, .sp_mode = SequenceMode::kSplitGather},
        {.pp = 2, .sp = 2, .sp_mode = SequenceMode::kAllToAll},
        {.pp = 2, .sp = 2, .sp_mode = SequenceMode::kRingAttention},
        {.pp = 2, .tp = 2, .sp = 2, .sp_mode = SequenceMode::kRingAttention}};
    for (const PipelineAxes& axes : sequences) {
      const int ranks = axes.pp * axes.tp * axes.sp;
      variants.push_back(Pipelined(schedule, axes, turn++ % 3,
                                   ranks == 8 ? std::vector<int>{8} : std::vector<int>{4, 8}));
    }
  }
}

// Named "hybrid_sp2_ring_attn_tp2_zero1" and so on. `sp` is 1 for split_gather.
PluginVariant Sequence(SequenceMode mode, int sp, int tp, int stage, std::vector<int> worlds) {
  const auto make = [=](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, settings.training,
        HybridParallelOptions{.tp_size = tp, .sp_size = sp, .sp_mode = mode, .stage = stage});
  };
  const std::string ranks =
      "sp" + std::to_string(std::max(sp, mode == SequenceMode::kSplitGather ? tp : 1)) + "_" +
      Name(mode) + (tp > 1 ? "_tp" + std::to_string(tp) : "");
  return {
      .name = stage < 3 ? "hybrid_" + ranks + "_zero" + std::to_string(stage) : "gemini_" + ranks,
      .worlds = std::move(worlds),
      .precisions = AllPrecisions(),
      .make = make,
      .tp = tp,
      .sp = sp,
      .workloads = {"gpt2_long", "llama_long"},
      .is_hybrid = true};
}

// The mesh axes of a variant with experts over ranks, other than dp.
struct ExpertAxes {
  int ep = 2, tp = 1, pp = 1, sp = 1;
  SequenceMode sp_mode = SequenceMode::kNone;
};

// Named "hybrid_ep2_zero1" and so on; with other axes "hybrid_ep2_pp2_tp2_zero1", and with stage 3
// "gemini_ep2".
PluginVariant Experts(const ExpertAxes& axes, int stage, std::vector<int> worlds) {
  const int micro_batches = axes.pp > 1 ? 3 : 1;
  const auto make = [=](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, settings.training,
        HybridParallelOptions{.tp_size = axes.tp,
                              .pp_size = axes.pp,
                              .sp_size = axes.sp,
                              .sp_mode = axes.sp_mode,
                              .ep_size = axes.ep,
                              .stage = stage,
                              .num_microbatches = axes.pp > 1 ? micro_batches : 0});
  };
  std::string ranks = "ep" + std::to_string(axes.ep);
  if (axes.pp > 1) ranks += "_pp" + std::to_string(axes.pp);
  if (axes.tp > 1) ranks += "_tp" + std::to_string(axes.tp);
  if (axes.sp > 1) ranks += "_sp" + std::to_string(axes.sp) + "_" + Name(axes.sp_mode);
  return {
      .name = stage < 3 ? "hybrid_" + ranks + "_zero" + std::to_string(stage) : "gemini_" + ranks,
      .worlds = std::move(worlds),
      .precisions = {"f64"},
      .make = make,
      .tp = axes.tp,
      .pp = axes.pp,
      .sp = axes.sp,
      .ep = axes.ep,
      .num_micro_batches = micro_batches,
      .workloads = {"moe", "moe_idle", "moe_one", "moe_rare", "moe_aux"},
      .is_hybrid = true};
}

void AppendExperts(std::vector<PluginVariant>& variants) {
  for (const int stage : {0, 1, 2}) {
    variants.push_back(Experts({.ep = 2}, stage, {2, 4, 6}));
    variants.push_back(Experts({.ep = 4}, stage, {4}));
    variants.push_back(Experts({.ep = 2, .tp = 2}, stage, {4, 8}));
    variants.push_back(Experts({.ep = 2, .pp = 2}, stage, {4}));
  }
  variants.push_back(Experts({.ep = 2}, 3, {2, 4, 6}));
  variants.push_back(Experts({.ep = 4}, 3, {4, 12}));
  variants.push_back(Experts({.ep = 2, .tp = 2}, 3, {4, 8}));
  variants.push_back(Experts({.ep = 2, .sp = 2, .sp_mode = SequenceMode::kAllToAll}, 3, {4}));
  variants.push_back(Experts({.ep = 2, .tp = 2, .pp = 2}, 1, {8}));
  variants.push_back(Experts({.ep = 2, .sp = 2, .sp_mode = SequenceMode::kAllToAll}, 1, {4, 8}));
  variants.push_back(Experts({.ep = 2, .sp = 2, .sp_mode = SequenceMode::kRingAttention}, 0, {4}));
  variants.push_back(
      Experts({.ep = 2, .tp = 2, .sp = 2, .sp_mode = SequenceMode::kRingAttention}, 2, {8}));
}

void AppendSequence(std::vector<PluginVariant>& variants) {
  variants.push_back(Sequence(SequenceMode::kSplitGather, 1, 2, 0, {2, 4}));
  variants.push_back(Sequence(SequenceMode::kSplitGather, 1, 2, 2, {4}));
  variants.push_back(Sequence(SequenceMode::kSplitGather, 1, 4, 1, {4, 8}));
  variants.push_back(Sequence(SequenceMode::kSplitGather, 1, 2, 3, {4}));
  variants.push_back(Sequence(SequenceMode::kAllToAll, 2, 1, 0, {2, 4}));
  variants.push_back(Sequence(SequenceMode::kAllToAll, 4, 1, 2, {4}));
  variants.push_back(Sequence(SequenceMode::kAllToAll, 2, 2, 1, {4, 8}));
  variants.push_back(Sequence(SequenceMode::kRingAttention, 2, 1, 0, {2, 4}));
  variants.push_back(Sequence(SequenceMode::kRingAttention, 4, 1, 1, {4, 8}));
  variants.push_back(Sequence(SequenceMode::kRingAttention, 4, 2, 2, {8}));
  variants.push_back(Sequence(SequenceMode::kRingAttention, 2, 2, 3, {4}));
}

std::vector<PluginVariant> MakeVariants() {
  const std::vector<std::string>& all = AllPrecisions();
  std::vector<PluginVariant> variants = {
      {"single", {1}, {"f32", "f64", "bf16"}, true, &MakeSingle},
      {"ddp", {1, 2, 3, 4}, all, true, &MakeDdp},
      {"zero1", {1, 2, 3, 4}, all, true, MakeZero({.stage = 1})},
      {"zero2", {1, 2, 3, 4}, all, true, MakeZero({.stage = 2})},
      {"gemini", {1, 2, 3, 4}, all, true, &MakeGemini},
      {"ddp_late", {3}, {"f32", "bf16"}, false, &MakeDdpLate},
      {"ddp_reproducible", {2}, {"f32", "fp16"}, false, &MakeDdpReproducible},
      {"zero1_late", {4}, {"f32", "fp16"}, false, &MakeZero1Late},
      {"zero1_sum_f64",
       {3},
       {"f32", "bf16"},
       false,
       MakeZero({.stage = 1, .communication_dtype = Precision::kF64})},
      {"zero2_late", {2}, {"f32", "bf16"}, false, &MakeZero2Late},
      {"zero2_offload",
       {3},
       {"f32", "fp16"},
       false,
       MakeZero({.stage = 2, .offload_states = true})},
      {"gemini_small_chunks", {3}, {"f32", "bf16"}, false, &MakeGeminiSmall},
      {"zero2_no_masters",
       {2},
       {"bf16"},
       false,
       MakeZero({.stage = 2, .master_weights = false}),
       /*master_weights=*/false},
  };
  for (const int stage : {0, 1, 2}) {
    variants.push_back(Hybrid(1, stage, {2}));
    variants.push_back(Hybrid(2, stage, {2, 4, 6, 8}));
    variants.push_back(Hybrid(4, stage, {4, 8}));
  }
  AppendPipelined(variants);
  variants.push_back(Hybrid(1, 3, {2}));
  variants.push_back(Hybrid(1, 3, {3}, PlacementPolicy::kAuto));
  variants.push_back(Hybrid(2, 3, {2, 4, 6}));
  variants.push_back(Hybrid(2, 3, {2, 4}, PlacementPolicy::kAuto));
  AppendSequence(variants);
  AppendExperts(variants);
  return variants;
}

}  // namespace

std::vector<PluginVariant> LibraryPlugins() { return MakeVariants(); }

}  // namespace apogee::matrix
