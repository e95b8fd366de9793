// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/pictures/timeline/trace_reader.h"
#include "apogee/tools/command.h"
#include "apogee/tools/tensor_store.h"

namespace apogee::tools {
namespace {

constexpr int64_t kMaxTraceBytes = int64_t{1} << 30;

struct TimelineFlags {
  std::string path, svg;
  std::optional<int64_t> step;
};

void Print(const StepTimeline& step) {
  std::cout << "step " << step.step() << ": " << FormatMs(step.makespan_ns()) << ", bubble "
            << FormatPercent(step.bubble_share()) << "\n";
  for (const StageTime& stage : step.stages()) {
    std::cout << "  rank " << stage.rank << "  busy " << FormatMs(stage.busy_ns) << ", idle "
              << FormatMs(stage.idle_ns) << "\n";
  }
}

absl::Status Show(const TimelineFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(
      const std::string text,
      checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), flags.path, kMaxTraceBytes));
  APOGEE_ASSIGN_OR_RETURN(std::vector<PipelineEvent> events, ReadPipelineEvents(text, flags.path));
  if (events.empty()) {
    return InvalidArgument(flags.path,
                           ": there is no pipeline work in it (events of the category \"pipeline\" "
                           "with args.kind F, B or W); record a run with pipeline stages");
  }
  std::vector<StepTimeline> steps = Timelines(std::move(events));
  if (flags.step) {
    const int64_t first = steps.front().step(), last = steps.back().step();
    std::erase_if(steps, [&](const StepTimeline& step) { return step.step() != *flags.step; });
    if (steps.empty()) {
      return InvalidArgument(flags.path, ": there is no step ", *flags.step,
                             "; the trace has steps from ", first, " to ", last);
    }
  }
  for (const StepTimeline& step : steps) Print(step);
  if (steps.size() > 1) {
    std::cout << steps.size() << " steps, bubble " << FormatPercent(BubbleShare(steps)) << "\n";
  }
  if (flags.svg.empty()) return absl::OkStatus();
  APOGEE_ASSIGN_OR_RETURN(const auto file, LineFile::Create(flags.svg));
  return file->Append(TimelineSvg(steps.back(), "Pipeline of " + Printable(flags.path)));
}

int Run(const TimelineFlags& flags) {
  const absl::Status status = Show(flags);
  if (status.ok()) return 0;
  std::cerr << "apogee timeline: " << Printable(Message(status)) << "\n";
  return absl::IsDataLoss(status) ? 1 : 2;
}

}  // namespace

void AddTimelineCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TimelineFlags>();
  CLI::App* command = app.add_subcommand(
      "timeline", "Show from a trace how long the stages of a pipeline worked and waited");
  command->add_option("trace", flags->path, "The trace file that a program wrote (--trace)")
      ->required();
  command->add_option("--svg", flags->svg, "Draw the last step, or --step, to this file");
  command->add_option("--step", flags->step, "Only this step");
  command->footer(
      "A step lasts from its first piece of pipeline work to its last. The bubble is the share of "
      "the stages' time in which they wait. Exit status: 0 done, 1 the trace is damaged, 2 wrong "
      "use "
      "or another error.");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
