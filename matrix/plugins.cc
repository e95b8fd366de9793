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

DdpOptions DdpOf(const PluginSettings& settings) {
  return {.precision = settings.precision,
          .max_norm = settings.max_norm,
          .bucket_bytes = settings.bucket_bytes,
          .loss_scaler = settings.loss_scaler};
}

MadePlugin MakeSingle(const comm::World& /*world*/, const PluginSettings& settings) {
  return std::make_unique<SingleRankPlugin>(
      SingleRankOptions{.precision = settings.precision, .max_norm = settings.max_norm});
}

MadePlugin MakeDdp(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<DdpPlugin>(world.group(), DdpOf(settings));
}

// One bucket, launched at the end of backward.
MadePlugin MakeDdpLate(const comm::World& world, const PluginSettings& settings) {
  DdpOptions options = DdpOf(settings);
  options.bucket_bytes = 1 << 20;
  options.overlap = false;
  return std::make_unique<DdpPlugin>(world.group(), options);
}

MadePlugin MakeDdpReproducible(const comm::World& world, const PluginSettings& settings) {
  DdpOptions options = DdpOf(settings);
  options.reproducible = true;
  return std::make_unique<DdpPlugin>(world.group(), options);
}

LowLevelZeroOptions ZeroOf(int stage, const PluginSettings& settings) {
  return {.stage = stage,
          .precision = settings.precision,
          .max_norm = settings.max_norm,
          .bucket_bytes = settings.bucket_bytes,
          .loss_scaler = settings.loss_scaler};
}

MadePlugin MakeZero1(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<LowLevelZeroPlugin>(world.group(), ZeroOf(1, settings));
}

MadePlugin MakeZero2(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<LowLevelZeroPlugin>(world.group(), ZeroOf(2, settings));
}

GeminiOptions GeminiOf(const PluginSettings& settings) {
  return {.precision = settings.precision,
          .max_norm = settings.max_norm,
          .chunk_bytes = settings.bucket_bytes,
          .loss_scaler = settings.loss_scaler};
}

MadePlugin MakeGemini(const comm::World& world, const PluginSettings& settings) {
  return std::make_unique<GeminiPlugin>(world.group(), GeminiOf(settings));
}

// One chunk per parameter.
MadePlugin MakeGeminiSmall(const comm::World& world, const PluginSettings& settings) {
  GeminiOptions options = GeminiOf(settings);
  options.chunk_bytes = 1;
  return std::make_unique<GeminiPlugin>(world.group(), options);
}

// One bucket, and no communication in the background.
MadePlugin MakeZero1Late(const comm::World& world, const PluginSettings& settings) {
  LowLevelZeroOptions options = ZeroOf(1, settings);
  options.bucket_bytes = 1 << 20;
  options.overlap_communication = false;
  options.overlap_gather = false;
  return std::make_unique<LowLevelZeroPlugin>(world.group(), options);
}

MadePlugin MakeZero2Late(const comm::World& world, const PluginSettings& settings) {
  LowLevelZeroOptions options = ZeroOf(2, settings);
  options.overlap_communication = false;
  options.overlap_gather = false;
  return std::make_unique<LowLevelZeroPlugin>(world.group(), options);
}

MadePlugin MakeZero1SumF64(const comm::World& world, const PluginSettings& settings) {
  LowLevelZeroOptions options = ZeroOf(1, settings);
  options.communication_dtype = "f64";
  return std::make_unique<LowLevelZeroPlugin>(world.group(), options);
}

MadePlugin MakeZero2Offload(const comm::World& world, const PluginSettings& settings) {
  LowLevelZeroOptions options = ZeroOf(2, settings);
  options.offload_states = true;
  return std::make_unique<LowLevelZeroPlugin>(world.group(), options);
}

MadePlugin MakeZero2NoMasters(const comm::World& world, const PluginSettings& settings) {
  LowLevelZeroOptions options = ZeroOf(2, settings);
  options.master_weights = false;
  return std::make_unique<LowLevelZeroPlugin>(world.group(), options);
}

const std::vector<std::string>& AllPrecisions() {
  static const auto& all = *new std::vector<std::string>{"f32", "f64", "bf16", "fp16"};
  return all;
}

// For "auto", half of the memory that a rank's part of the model needs with AdamW's states.
PlacementOptions PlacementOf(const std::string& policy, int tp, const PluginSettings& settings) {
  if (policy != "auto") return {};
  const int64_t element_bytes = settings.precision == "f64"   ? 32
                                : settings.precision == "f32" ? 16
                                                              : 18;
  return {.placement_policy = policy,
          .device_budget_bytes = settings.num_parameters / tp * element_bytes / 2};
}

// Named "hybrid_tp2_zero1" and so on.
PluginVariant Hybrid(int tp, int zero_stage, std::vector<int> worlds,
                     const std::string& placement = "static") {
  const auto make = [tp, zero_stage, placement](const comm::World& world,
                                                const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, HybridParallelOptions{.tp_size = tp,
                                     .zero_stage = zero_stage,
                                     .precision = settings.precision,
                                     .max_norm = settings.max_norm,
                                     .plan = settings.plan,
                                     .bucket_bytes = settings.bucket_bytes,
                                     .loss_scaler = settings.loss_scaler,
                                     .placement = PlacementOf(placement, tp, settings)});
  };
  const std::string ranks = "tp" + std::to_string(tp);
  const std::string name = zero_stage < 3
                               ? "hybrid_" + ranks + "_zero" + std::to_string(zero_stage)
                               : "gemini_" + ranks + (placement == "static" ? "" : "_" + placement);
  return {.name = name,
          .worlds = std::move(worlds),
          .precisions = AllPrecisions(),
          .make = make,
          .tp = tp,
          .workloads = {"fed", "gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied"},
          .is_hybrid = true};
}

// The mesh axes of a pipelined variant, other than dp.
struct PipelineAxes {
  int pp = 2, tp = 1, sp = 1;
  std::string sp_mode = "";  // the mode of sp; with tp alone "split_gather"
};

// Named "hybrid_pp2_zbv_zero1" and so on; with other axes "hybrid_pp2_tp2_zbv_zero1".
PluginVariant Pipelined(const std::string& schedule, const PipelineAxes& axes, int zero_stage,
                        std::vector<int> worlds) {
  // 4 divides 36 and 12 samples, so pp micro-batches all have the same size; only then are the
  // means of "fed" exact. Otherwise use 6 micro-batches, which divide 18 and 6 samples.
  const bool exact = axes.pp == 2 || worlds == std::vector<int>{4};
  const int num_micros = exact ? axes.pp : 6;
  const auto make = [=](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, HybridParallelOptions{.tp_size = axes.tp,
                                     .pp_size = axes.pp,
                                     .sp_size = axes.sp,
                                     .sp_mode = axes.sp_mode,
                                     .zero_stage = zero_stage,
                                     .precision = settings.precision,
                                     .max_norm = settings.max_norm,
                                     .plan = settings.plan,
                                     .bucket_bytes = settings.bucket_bytes,
                                     .loss_scaler = settings.loss_scaler,
                                     .schedule = schedule,
                                     .num_microbatches = num_micros});
  };
  std::string ranks = "pp" + std::to_string(axes.pp);
  if (axes.tp > 1) ranks += "_tp" + std::to_string(axes.tp);
  if (!axes.sp_mode.empty()) ranks += "_" + axes.sp_mode;
  const bool alone = axes.tp == 1 && axes.sp_mode.empty();
  std::vector<std::string> workloads = {"gpt2_deep", "llama_deep"};
  if (exact && axes.sp_mode.empty()) workloads.insert(workloads.begin(), "fed");
  return {.name = "hybrid_" + ranks + (exact ? "_" : "_dp2_") + schedule + "_zero" +
                  std::to_string(zero_stage),
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
  for (const char* schedule : {"1f1b", "interleaved", "zbv"}) {
    for (const int zero_stage : {0, 1, 2}) {
      variants.push_back(Pipelined(schedule, {.pp = 2}, zero_stage, {2, 4}));
      variants.push_back(Pipelined(schedule, {.pp = 4}, zero_stage, {4}));
      variants.push_back(Pipelined(schedule, {.pp = 4}, zero_stage, {8}));
      variants.push_back(Pipelined(schedule, {.pp = 2, .tp = 2}, zero_stage, {4, 8}));
    }
    // Every mode with every schedule; ZeRO stages alternate.
    const PipelineAxes sequences[] = {{.pp = 2, .tp = 2, .sp_mode = "split_gather"},
                                      {.pp = 2, .sp = 2, .sp_mode = "all_to_all"},
                                      {.pp = 2, .sp = 2, .sp_mode = "ring_attn"},
                                      {.pp = 2, .tp = 2, .sp = 2, .sp_mode = "ring_attn"}};
    for (const PipelineAxes& axes : sequences) {
      const int ranks = axes.pp * axes.tp * axes.sp;
      variants.push_back(Pipelined(schedule, axes, turn++ % 3,
                                   ranks == 8 ? std::vector<int>{8} : std::vector<int>{4, 8}));
    }
  }
}

// Named "hybrid_sp2_ring_attn_tp2_zero1" and so on. `sp` is 1 for split_gather.
PluginVariant Sequence(const std::string& mode, int sp, int tp, int zero_stage,
                       std::vector<int> worlds) {
  const auto make = [=](const comm::World& world, const PluginSettings& settings) {
    return std::make_unique<HybridParallelPlugin>(
        world, HybridParallelOptions{.tp_size = tp,
                                     .sp_size = sp,
                                     .sp_mode = mode,
                                     .zero_stage = zero_stage,
                                     .precision = settings.precision,
                                     .max_norm = settings.max_norm,
                                     .bucket_bytes = settings.bucket_bytes,
                                     .loss_scaler = settings.loss_scaler});
  };
  const std::string ranks = "sp" + std::to_string(std::max(sp, mode == "split_gather" ? tp : 1)) +
                            "_" + mode + (tp > 1 ? "_tp" + std::to_string(tp) : "");
  return {.name = zero_stage < 3 ? "hybrid_" + ranks + "_zero" + std::to_string(zero_stage)
                                 : "gemini_" + ranks,
          .worlds = std::move(worlds),
          .precisions = AllPrecisions(),
          .make = make,
          .tp = tp,
          .sp = sp,
          .workloads = {"gpt2_long", "llama_long"},
          .is_hybrid = true};
}

void AppendSequence(std::vector<PluginVariant>& variants) {
  variants.push_back(Sequence("split_gather", 1, 2, 0, {2, 4}));
  variants.push_back(Sequence("split_gather", 1, 2, 2, {4}));
  variants.push_back(Sequence("split_gather", 1, 4, 1, {4, 8}));
  variants.push_back(Sequence("split_gather", 1, 2, 3, {4}));
  variants.push_back(Sequence("all_to_all", 2, 1, 0, {2, 4}));
  variants.push_back(Sequence("all_to_all", 4, 1, 2, {4}));
  variants.push_back(Sequence("all_to_all", 2, 2, 1, {4, 8}));
  variants.push_back(Sequence("ring_attn", 2, 1, 0, {2, 4}));
  variants.push_back(Sequence("ring_attn", 4, 1, 1, {4, 8}));
  variants.push_back(Sequence("ring_attn", 4, 2, 2, {8}));
  variants.push_back(Sequence("ring_attn", 2, 2, 3, {4}));
}

std::vector<PluginVariant> MakeVariants() {
  const std::vector<std::string>& all = AllPrecisions();
  std::vector<PluginVariant> variants = {
      {"single", {1}, {"f32", "f64", "bf16"}, true, &MakeSingle},
      {"ddp", {1, 2, 3, 4}, all, true, &MakeDdp},
      {"zero1", {1, 2, 3, 4}, all, true, &MakeZero1},
      {"zero2", {1, 2, 3, 4}, all, true, &MakeZero2},
      {"gemini", {1, 2, 3, 4}, all, true, &MakeGemini},
      {"ddp_late", {3}, {"f32", "bf16"}, false, &MakeDdpLate},
      {"ddp_reproducible", {2}, {"f32", "fp16"}, false, &MakeDdpReproducible},
      {"zero1_late", {4}, {"f32", "fp16"}, false, &MakeZero1Late},
      {"zero1_sum_f64", {3}, {"f32", "bf16"}, false, &MakeZero1SumF64},
      {"zero2_late", {2}, {"f32", "bf16"}, false, &MakeZero2Late},
      {"zero2_offload", {3}, {"f32", "fp16"}, false, &MakeZero2Offload},
      {"gemini_small_chunks", {3}, {"f32", "bf16"}, false, &MakeGeminiSmall},
      {"zero2_no_masters", {2}, {"bf16"}, false, &MakeZero2NoMasters, /*master_weights=*/false},
  };
  for (const int zero_stage : {0, 1, 2}) {
    variants.push_back(Hybrid(1, zero_stage, {2}));
    variants.push_back(Hybrid(2, zero_stage, {2, 4, 6, 8}));
    variants.push_back(Hybrid(4, zero_stage, {4, 8}));
  }
  AppendPipelined(variants);
  variants.push_back(Hybrid(1, 3, {2}));
  variants.push_back(Hybrid(1, 3, {3}, "auto"));
  variants.push_back(Hybrid(2, 3, {2, 4, 6}));
  variants.push_back(Hybrid(2, 3, {2, 4}, "auto"));
  AppendSequence(variants);
  return variants;
}

}  // namespace

const std::vector<PluginVariant>& PluginVariants() {
  static const auto& variants = *new std::vector<PluginVariant>(MakeVariants());
  return variants;
}

const PluginVariant& FindPlugin(const std::string& name) {
  std::vector<std::string> names;
  for (const PluginVariant& variant : PluginVariants()) {
    if (variant.name == name) return variant;
    names.push_back(variant.name);
  }
  Throw(UnknownName("plugin", name, names));
}

}  // namespace apogee::matrix
