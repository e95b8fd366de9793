// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/text.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/report/charts/inline_svg.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

std::string Figure(const std::string& svg) {
  return "<div class=\"scroll picture\">" + svg + "</div>\n";
}

std::string Timeline(const RunData& run, const std::string& id) {
  const StepTimeline& step = run.timelines.back();
  const std::string drawn = TimelineSvg(step, "Pipeline of " + run.label);
  return "<p>" + FormatThousands(static_cast<int64_t>(run.timelines.size())) +
         (run.timelines.size() == 1 ? " step" : " steps") + " traced, bubble " +
         FormatPercent(BubbleShare(run.timelines)) + ".</p>\n" +
         Figure(ValueOrThrow(InlineSvg(drawn, "the drawn timeline", id + "-timeline-")));
}

}  // namespace

std::string PicturesSection(const Runs& runs) {
  std::string text, missing;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    const std::string heading = "<h3>" + RunName(runs, i) + "</h3>\n";
    std::string pictures;
    if (!run.shard_map.empty()) pictures += Figure(run.shard_map);
    if (!run.chunk_map.empty()) pictures += Figure(run.chunk_map);
    if (!run.timelines.empty()) pictures += Timeline(run, RunId(i));
    if (!run.expert_loads.empty()) pictures += Figure(run.expert_loads);
    if (!pictures.empty()) text += heading + pictures;
    std::vector<std::string> absent;
    if (run.shard_map.empty()) absent.emplace_back("who holds what (shard_map.svg)");
    if (run.chunk_map.empty()) absent.emplace_back("the chunk map (chunk_map.svg)");
    if (run.timelines.empty())
      absent.emplace_back("the pipeline's timeline (trace.json, of --trace OUT/trace.json)");
    if (!absent.empty()) {
      missing += HtmlNote(run.label + " did not record " + JoinTexts(absent, ", ") + ".");
    }
  }
  return Section("layout", "Layout and pipeline", text + missing);
}

}  // namespace apogee::report
