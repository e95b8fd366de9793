#include "apogee/tools/matrix/cell.h"

#include <fnmatch.h>

#include "apogee/optim/registry.h"
#include "apogee/tools/matrix/plugins.h"
#include "apogee/tools/matrix/workload.h"

namespace apogee::tools {
namespace {

struct Window {
  int64_t accumulate;
  bool no_sync;
};

}  // namespace

std::string Cell::name() const {
  return optimizer + "/" + plugin + "/world" + std::to_string(world) + "/" + precision + "/acc" +
         std::to_string(accumulate) + (no_sync ? "ns" : "") + (clip ? "/clip" : "") + "/" +
         workload;
}

std::vector<Cell> AllCells() {
  constexpr Window kWindows[] = {{1, false}, {3, false}, {3, true}};
  std::vector<Cell> cells;
  for (const std::string& optimizer : optim::OptimizerNames()) {
    for (const PluginVariant& plugin : PluginVariants()) {
      for (const int world : plugin.worlds) {
        for (const std::string& workload : WorkloadNames()) {
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
  return cells;
}

bool MatchesPattern(const std::string& name, const std::string& pattern) {
  return name.find(pattern) != std::string::npos || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace apogee::tools
