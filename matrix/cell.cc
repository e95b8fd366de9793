// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/cell.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "apogee/core/rng.h"
#include "apogee/core/text/text.h"
#include "apogee/matrix/models/families.h"
#include "apogee/matrix/models/tiny_model.h"
#include "apogee/matrix/plugins.h"

namespace apogee::matrix {
namespace {

struct Window {
  int64_t accumulate;
  bool no_sync;
};

bool IsF64Only(const Catalog& catalog, const std::string& workload) {
  return catalog.FindWorkload(workload).is_f64_only();
}

constexpr Window kWindows[] = {{1, false}, {3, false}, {3, true}};

// A number below `n`, a pure function of the text.
size_t Choice(const std::string& text, size_t n) { return Philox(MakeKey(31, text), 0)[0] % n; }

// The cell with every window, with and without clipping.
std::vector<Cell> WindowsOf(Cell cell) {
  std::vector<Cell> cells;
  for (const Window& window : kWindows) {
    for (const bool clip : {false, true}) {
      cell.accumulate = window.accumulate;
      cell.no_sync = window.no_sync;
      cell.clip = clip;
      cells.push_back(cell);
    }
  }
  return cells;
}

// With ignored targets, every optimizer meets every layout once, in f64, where rounding hides no
// wrong mean. The window and the model are drawn.
void AppendIgnored(const Catalog& catalog, const std::string& optimizer,
                   const PluginVariant& plugin, int world, std::vector<Cell>& cells) {
  std::vector<std::string> models = plugin.workloads;
  std::erase_if(models, [&](const std::string& model) {
    // A pipeline weighs its micro-batches by their targets, the auxiliary loss by their samples.
    const bool weighs = plugin.num_micro_batches > 1 && catalog.FindWorkload(model).mixes_samples();
    return model == "fed" || weighs || (IsF64Only(catalog, model) && plugin.ep == 1);
  });
  // CAME divides by the distance of an update from its average. In the deep models, with few
  // samples per step after targets are ignored, that turns one rank's rounding errors into 1e-5:
  // scaling the loss by 3 and the gradients back changes the result as much. The other models would
  // show the same bugs.
  if (optimizer == "came") {
    std::erase_if(models, [](const std::string& model) { return model.ends_with("_deep"); });
  }
  if (models.empty() || std::ranges::find(plugin.precisions, "f64") == plugin.precisions.end()) {
    return;
  }
  Cell cell = {.optimizer = optimizer,
               .plugin = plugin.name,
               .world = world,
               .precision = "f64",
               .ignored = true,
               .workload = {}};
  cell.workload = models[Choice(cell.name(), models.size())];
  const std::vector<Cell> windows = WindowsOf(cell);
  cells.push_back(windows[Choice(cell.name(), windows.size())]);
}

// "fed" meets every layout of ranks in f32 and f64. A model meets a layout once per workload and
// once per precision. Windows are drawn. "fed" in f32, in one micro-batch without clipping, is
// always there because the tables of traffic need it.
void AppendHybrid(const Catalog& catalog, const std::string& optimizer, const PluginVariant& plugin,
                  int world, std::vector<Cell>& cells) {
  const size_t turn =
      Choice(optimizer + "/" + plugin.name + "/" + std::to_string(world), plugin.precisions.size());
  for (size_t w = 0; w < plugin.workloads.size(); ++w) {
    for (size_t p = 0; p < plugin.precisions.size(); ++p) {
      const Cell cell = {.optimizer = optimizer,
                         .plugin = plugin.name,
                         .world = world,
                         .precision = plugin.precisions[p],
                         .workload = plugin.workloads[w]};
      const bool fed = cell.workload == "fed";
      const bool drawn = fed ? cell.precision == "f32" || cell.precision == "f64"
                         : IsF64Only(catalog, cell.workload)
                             ? cell.precision == "f64"
                             : (w + p + turn) % plugin.precisions.size() == 0;
      if (!drawn) continue;
      const std::vector<Cell> windows = WindowsOf(cell);
      const bool plain = fed && cell.precision == "f32";
      if (plain) cells.push_back(windows[0]);
      const size_t begin = plain ? 1 : 0;
      cells.push_back(windows[begin + Choice(cell.name(), windows.size() - begin)]);
    }
  }
}

// The ways to shard: data parallelism, tensor parallelism, pipelines, sequences, and products of
// these. Model families and adapters each meet most of them.
struct WayToShard {
  const char* plugin;
  int world;
  bool families = true, adapters = true;
};
constexpr WayToShard kWaysToShard[] = {
    {"ddp", 3},
    {"zero1", 2},
    {"zero2", 3},
    {"gemini", 2},
    {"hybrid_tp2_zero0", 2},
    {.plugin = "hybrid_tp2_zero2", .world = 4, .adapters = false},
    {.plugin = "hybrid_tp2_zero1", .world = 4, .families = false},
    {.plugin = "hybrid_tp4_zero2", .world = 8, .families = false},
    {"gemini_tp2", 4},
    {"hybrid_pp2_1f1b_zero0", 2},
    {"hybrid_pp2_zbv_zero2", 4},
    {"hybrid_pp2_tp2_interleaved_zero1", 8},
    {"hybrid_sp2_split_gather_tp2_zero0", 2},
    {"gemini_sp2_split_gather_tp2", 4},
    {"hybrid_sp2_all_to_all_zero0", 2},
    {"hybrid_sp2_ring_attn_zero0", 2},
    {"gemini_sp2_ring_attn_tp2", 4}};

// Every family with AdamW in f64 under each way to shard.
void AppendFamilies(const Catalog& catalog, std::vector<Cell>& cells) {
  for (const std::string& name : catalog.workloads.names()) {
    const auto* family = dynamic_cast<const FamilyWorkload*>(&catalog.FindWorkload(name));
    if (family == nullptr) continue;
    int turn = 0;
    for (const WayToShard& way : kWaysToShard) {
      if (!way.families) continue;
      const std::string plugin = way.plugin;
      const bool pipeline = plugin.find("_pp") != std::string::npos;
      const bool sequence = plugin.find("_sp") != std::string::npos;
      if (!family->is_chain() && (pipeline || sequence)) continue;
      if (family->takes_images() && sequence) continue;
      // Rows of experts are no whole sequences: that is refused.
      if (family->has_experts() && plugin.find("split_gather") != std::string::npos) continue;
      // Sequences in a ring, and keys and values of attention both ways: that is refused.
      if (family->is_encoder() && plugin.find("ring") != std::string::npos) continue;
      const Window& window = kWindows[turn++ % std::size(kWindows)];
      cells.push_back({.optimizer = "adamw",
                       .plugin = plugin,
                       .world = way.world,
                       .precision = "f64",
                       .accumulate = window.accumulate,
                       .no_sync = window.no_sync,
                       .clip = turn % 2 == 0,
                       .workload = name});
    }
  }
}

// Heads in chunks with AdamW in f64 under each way to shard, one of two with ignored targets.
void AppendChunked(const Catalog& catalog, std::vector<Cell>& cells) {
  int turn = 0;
  for (const std::string& name : catalog.workloads.names()) {
    const auto* lm = dynamic_cast<const LmWorkload*>(&catalog.FindWorkload(name));
    if (lm == nullptr || !lm->has_chunks()) continue;
    for (const WayToShard& way : kWaysToShard) {
      const Window& window = kWindows[turn++ % std::size(kWindows)];
      cells.push_back({.optimizer = "adamw",
                       .plugin = way.plugin,
                       .world = way.world,
                       .precision = "f64",
                       .accumulate = window.accumulate,
                       .no_sync = window.no_sync,
                       .clip = turn % 2 == 0,
                       .ignored = turn % 4 > 1,
                       .workload = name});
    }
  }
}

// Optimizers with 1-bit messages need whole local gradients. Plugins that shard, also experts, or
// that promise the same bits for any number of ranks, refuse them at boost. split_gather at stage 3
// refuses optimizers that update inside backward.
bool IsOffered(const std::string& optimizer, const PluginVariant& plugin,
               const optim::OptimizerRegistry& optimizers) {
  // In split_gather gradients are summed after backward, which is too late for an update inside it.
  if (plugin.name.find("gemini_sp2_split_gather") == 0 &&
      (optimizer == "lomo" || optimizer == "adalomo")) {
    return false;
  }
  if (!optimizers.TakesLocalGradients(optimizer)) return true;
  for (const char* word : {"zero1", "zero2", "gemini", "reproducible", "_ep"}) {
    if (plugin.name.find(word) != std::string::npos) return false;
  }
  return true;
}

// Adapters with every optimizer, in one precision under each way to shard, with each model and
// base.
void AppendLora(const Catalog& catalog, const std::string& optimizer, std::vector<Cell>& cells) {
  constexpr const char* kPrecisions[] = {"f64", "f32", "bf16"};
  size_t turn = Choice(optimizer, std::size(kPrecisions));
  for (const WayToShard& way : kWaysToShard) {
    if (!way.adapters) continue;
    if (!IsOffered(optimizer, catalog.FindPlugin(way.plugin), catalog.optimizers)) continue;
    for (const char* workload : {"lora", "lora_gpt2", "lora_nf4", "lora_gpt2_int8"}) {
      Cell cell = {.optimizer = optimizer,
                   .plugin = way.plugin,
                   .world = way.world,
                   .precision = kPrecisions[turn++ % std::size(kPrecisions)],
                   .workload = workload};
      // The few directions of a factor's gradient are near each other: rounding to bf16 swaps them.
      if (cell.precision == "bf16" && optimizer.starts_with("galore")) cell.precision = "f64";
      const std::vector<Cell> windows = WindowsOf(cell);
      cells.push_back(windows[Choice(cell.name(), windows.size())]);
      // CAME divides by the root of a residual plus 1e-16. Where that is 0, as for factors over
      // this base without clipping, it multiplies the rounding of f64 by 1e8.
      if (optimizer == "came" && cell.workload == "lora_nf4") cells.back().clip = true;
    }
  }
}

// 0/1 Adam has no norm to clip by. DeepSpeed's 1-bit Adam divides by variances without bias
// correction; with clipped gradients of the deep GPT-2 that multiplies rounding errors by 600. In
// f32 and f64 they stay small, but 16-bit cells would show nothing.
bool CanClip(const Cell& cell) {
  if (cell.optimizer.starts_with("zero_one")) return false;
  const bool reduced = cell.precision == "bf16" || cell.precision == "fp16";
  return cell.optimizer != "onebit_adam_deepspeed" || !reduced || cell.workload != "gpt2_deep";
}

}  // namespace

bool Cell::shares_micro_batches() const {
  return ignored || catalog->FindWorkload(workload).mixes_samples();
}

int64_t Cell::num_shared_micro_batches() const {
  if (!shares_micro_batches()) return 1;
  const bool mixes = catalog->FindWorkload(workload).mixes_samples();
  return accumulate * (mixes ? catalog->FindPlugin(plugin).num_micro_batches : 1);
}

std::string Cell::name() const {
  return optimizer + "/" + plugin + "/world" + std::to_string(world) + "/" + precision + "/acc" +
         std::to_string(accumulate) + (no_sync ? "ns" : "") + (clip ? "/clip" : "") +
         (ignored ? "/ignored" : "") + "/" + workload;
}

std::vector<Cell> AllCells(const Catalog& catalog) {
  const optim::OptimizerRegistry& optimizers = catalog.optimizers;
  std::vector<Cell> cells;
  for (const std::string& optimizer : optimizers.names()) {
    for (const PluginVariant& plugin : catalog.plugins) {
      if (!IsOffered(optimizer, plugin, optimizers)) continue;
      for (const int world : plugin.worlds) {
        AppendIgnored(catalog, optimizer, plugin, world, cells);
        if (plugin.is_hybrid) {
          AppendHybrid(catalog, optimizer, plugin, world, cells);
          continue;
        }
        for (const std::string& workload : plugin.workloads) {
          for (const std::string& precision : plugin.precisions) {
            // "fed" gradients are exact, so only f32 and f64 matter.
            const bool reduced = precision == "bf16" || precision == "fp16";
            if (workload == "fed" && reduced) continue;
            const bool f64_only = IsF64Only(catalog, workload);
            if (f64_only && precision != "f64") continue;
            for (const Window& window : kWindows) {
              for (const bool clip : {false, true}) {
                // Plugins with varied options, and models, meet half of the combinations of window
                // and clipping.
                const bool half = clip == (window.no_sync != (world % 2 == 1));
                if ((!plugin.main || workload != "fed") && half) continue;
                // Layers meet one window with each number of ranks.
                if (f64_only && (window.accumulate > 1) == (world % 2 == 1)) continue;
                cells.push_back({.optimizer = optimizer,
                                 .plugin = plugin.name,
                                 .world = world,
                                 .precision = precision,
                                 .accumulate = window.accumulate,
                                 .no_sync = window.no_sync,
                                 .clip = clip,
                                 .workload = workload});
              }
            }
          }
        }
      }
    }
    AppendLora(catalog, optimizer, cells);
  }
  AppendFamilies(catalog, cells);
  AppendChunked(catalog, cells);
  std::set<std::string> names;
  std::erase_if(cells, [&](Cell& cell) {
    cell.clip = cell.clip && CanClip(cell);
    cell.catalog = &catalog;
    return !names.insert(cell.name()).second;
  });
  return cells;
}

bool MatchesPattern(const std::string& name, const std::string& pattern) {
  return name.find(pattern) != std::string::npos || GlobMatches(pattern, name);
}

}  // namespace apogee::matrix
