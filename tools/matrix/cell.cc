// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/matrix/cell.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "apogee/core/rng.h"
#include "apogee/optim/registry.h"
#include "apogee/tools/matrix/plugins.h"

namespace apogee::tools {
namespace {

struct Window {
  int64_t accumulate;
  bool no_sync;
};

constexpr Window kWindows[] = {{1, false}, {3, false}, {3, true}};

// A number below `n` that depends on the text alone.
size_t Choice(const std::string& text, size_t n) { return Philox(MakeKey(31, text), 0)[0] % n; }

// `cell` with all windows, with and without clipping.
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

// With ignored targets every optimizer meets every layout once, in f64, where nothing hides what a
// wrong mean does; the window and which model are drawn.
void AppendIgnored(const std::string& optimizer, const PluginVariant& plugin, int world,
                   std::vector<Cell>& cells) {
  std::vector<std::string> models = plugin.workloads;
  std::erase(models, "fed");
  // CAME divides by how far an update is from its average. In the deep models that ignored targets
  // leave with few samples per step this makes 1e-5 of the rounding errors of one rank: a loss that
  // is scaled by 3, and gradients back, change that much. What others show there it would show,
  // too.
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

// Given gradients meet every layout of ranks in f32 and f64, models meet it once with every
// workload and once in every precision; windows are drawn. f32 given gradients in one micro-batch
// without clipping are always there: tables of traffic are made from them.
void AppendHybrid(const std::string& optimizer, const PluginVariant& plugin, int world,
                  std::vector<Cell>& cells) {
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
      if (fed ? cell.precision != "f32" && cell.precision != "f64"
              : (w + p + turn) % plugin.precisions.size() != 0) {
        continue;
      }
      const std::vector<Cell> windows = WindowsOf(cell);
      const bool plain = fed && cell.precision == "f32";
      if (plain) cells.push_back(windows[0]);
      const size_t begin = plain ? 1 : 0;
      cells.push_back(windows[begin + Choice(cell.name(), windows.size() - begin)]);
    }
  }
}

// Optimizers that send 1-bit messages do so from whole gradients that stay local, which plugins
// that shard, or promise the same bits for any number of ranks, refuse at boost; split_gather at
// stage 3 refuses what updates inside backward.
bool IsOffered(const std::string& optimizer, const PluginVariant& plugin) {
  // Sums come before the step's decision, updates inside backward before both.
  if (plugin.name.find("gemini_sp2_split_gather") == 0 &&
      (optimizer == "lomo" || optimizer == "adalomo")) {
    return false;
  }
  if (!optim::TakesLocalGradients(optimizer)) return true;
  for (const char* word : {"zero1", "zero2", "gemini", "reproducible"}) {
    if (plugin.name.find(word) != std::string::npos) return false;
  }
  return true;
}

// 0/1 Adam has no norm to clip by. DeepSpeed's 1-bit Adam divides by variances without bias
// correction: of clipped gradients of the deep GPT-2 it makes 600 times their rounding (in f32 and
// f64, where that is little), so in 16 bits a cell could say nothing.
bool CanClip(const Cell& cell) {
  if (cell.optimizer.starts_with("zero_one")) return false;
  const bool reduced = cell.precision == "bf16" || cell.precision == "fp16";
  return cell.optimizer != "onebit_adam_deepspeed" || !reduced || cell.workload != "gpt2_deep";
}

}  // namespace

std::string Cell::name() const {
  return optimizer + "/" + plugin + "/world" + std::to_string(world) + "/" + precision + "/acc" +
         std::to_string(accumulate) + (no_sync ? "ns" : "") + (clip ? "/clip" : "") +
         (ignored ? "/ignored" : "") + "/" + workload;
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (const std::string& optimizer : optim::OptimizerNames()) {
    for (const PluginVariant& plugin : PluginVariants()) {
      if (!IsOffered(optimizer, plugin)) continue;
      for (const int world : plugin.worlds) {
        AppendIgnored(optimizer, plugin, world, cells);
        if (plugin.is_hybrid) {
          AppendHybrid(optimizer, plugin, world, cells);
          continue;
        }
        for (const std::string& workload : plugin.workloads) {
          for (const std::string& precision : plugin.precisions) {
            // Given gradients are exact, so their cells are about f32 and f64 alone.
            const bool reduced = precision == "bf16" || precision == "fp16";
            if (workload == "fed" && reduced) continue;
            for (const Window& window : kWindows) {
              for (const bool clip : {false, true}) {
                // Options of a plugin, and whole models, meet half of the windows and clippings.
                const bool half = clip == (window.no_sync != (world % 2 == 1));
                if ((!plugin.main || workload != "fed") && half) continue;
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
  }
  std::set<std::string> names;
  std::erase_if(cells, [&](Cell& cell) {
    cell.clip = cell.clip && CanClip(cell);
    return !names.insert(cell.name()).second;
  });
  return cells;
}

bool MatchesPattern(const std::string& name, const std::string& pattern) {
  return name.find(pattern) != std::string::npos || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace apogee::tools
