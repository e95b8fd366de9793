// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/reports.h"

#include <cstdio>
#include <vector>

#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/core/text/text.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/pictures/timeline/trace_reader.h"

namespace apogee::driver {
namespace {

constexpr MemoryCategory kModelData[] = {MemoryCategory::kParameter, MemoryCategory::kGradient,
                                         MemoryCategory::kOptimizerState};

std::string Row(const std::string& name, const std::string& peak, const std::string& now,
                const std::string& host) {
  char line[128];
  std::snprintf(line, sizeof(line), "%-20s %17s %15s %15s", name.c_str(), peak.c_str(), now.c_str(),
                host.c_str());
  const std::string text = line;
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

}  // namespace

std::string DescribeModelData(const MemoryLedger& device, const GeminiPlugin& plugin) {
  const MemoryLedger* const host = plugin.host() == nullptr ? nullptr : &plugin.host()->ledger();
  const int64_t budget_bytes = plugin.options().placement.device_budget_bytes;
  std::string text = Row("model data of rank 0", "device peak", "device now", "host now");
  for (const MemoryCategory category : kModelData) {
    text += "\n" + Row(MemoryCategoryName(category), FormatBytes(device.peak_bytes(category)),
                       FormatBytes(device.live_bytes(category)),
                       FormatBytes(host == nullptr ? 0 : host->live_bytes(category)));
  }
  text += "\n" + Row("all", FormatBytes(device.peak_model_data_bytes()),
                     FormatBytes(device.model_data_bytes()),
                     FormatBytes(host == nullptr ? 0 : host->model_data_bytes()));
  if (budget_bytes > 0) text += "\n" + Row("budget", FormatBytes(budget_bytes), "", "");
  return text + "\nother memory, at most: " + FormatBytes(plugin.peak_other_bytes()) +
         " (activations, workspaces)";
}

void PrintPipelineBubble(const std::string& trace_path) {
  if (trace_path.empty()) return;
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  const std::string text =
      ValueOrThrow(checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), trace_path, kMostBytes));
  const std::vector<StepTimeline> steps =
      Timelines(ValueOrThrow(ReadPipelineEvents(text, trace_path)));
  if (steps.empty()) return;  // no pipeline
  std::printf("pipeline: %zu steps, bubble %s\n", steps.size(),
              FormatPercent(BubbleShare(steps)).c_str());
}

}  // namespace apogee::driver
