// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"

namespace apogee::report {
namespace {

constexpr size_t kMostSkipped = 50, kMostNotes = 200, kMostSteps = 100, kMostBytes = 2000;

std::string LeftOut(size_t most, size_t all, const std::string& what) {
  if (all <= most) return "";
  return HtmlNote("The first " + std::to_string(most) + " of " +
                  FormatThousands(static_cast<int64_t>(all)) + " " + what + ".");
}

std::string Skipped(const std::vector<RunLog::Skipped>& skipped) {
  if (skipped.empty()) return "<p>No step was skipped.</p>\n";
  HtmlTable table({"skipped step", "why"});
  for (size_t i = 0; i < std::min(kMostSkipped, skipped.size()); ++i) {
    table.Row({FormatThousands(skipped[i].step), HtmlText(skipped[i].why)});
  }
  return table.Close() + LeftOut(kMostSkipped, skipped.size(), "skipped steps");
}

// "10, 20, ..., 300": the newest ones if there are many.
std::string Steps(const std::vector<int64_t>& steps) {
  std::vector<std::string> texts;
  const size_t begin = steps.size() - std::min(steps.size(), kMostSteps);
  if (begin > 0) texts.emplace_back("…");
  for (size_t i = begin; i < steps.size(); ++i) texts.push_back(FormatThousands(steps[i]));
  return JoinTexts(texts, " · ");
}

std::string Checkpoints(const RunData& run) {
  std::string text;
  if (!run.log.saved.empty()) text += "<p>Saved: " + Steps(run.log.saved) + ".</p>\n";
  text += run.checkpoints.empty()
              ? "<p>There are no checkpoints in the folder.</p>\n"
              : "<p>Checkpoints in the folder: " + Steps(run.checkpoints) + ".</p>\n";
  for (const std::string& why : run.rejected) text += HtmlNote("Not valid: " + why);
  return text;
}

std::string Notes(const std::vector<std::string>& notes) {
  if (notes.empty()) return HtmlNote("There are no notes (train.log).");
  std::string text = "<details open=\"open\"><summary>Notes</summary>\n<pre>";
  for (size_t i = 0; i < std::min(kMostNotes, notes.size()); ++i) {
    text +=
        HtmlText(notes[i].substr(0, kMostBytes)) + (notes[i].size() > kMostBytes ? "…\n" : "\n");
  }
  return text + "</pre>\n" + LeftOut(kMostNotes, notes.size(), "lines") + "</details>\n";
}

}  // namespace

std::string EventsSection(const Runs& runs) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    text += "<h3>" + RunName(runs, i) + "</h3>\n" + Skipped(runs[i].log.skipped) +
            Checkpoints(runs[i]) + Notes(runs[i].log.notes);
  }
  return Section("events", "Events", text);
}

}  // namespace apogee::report
