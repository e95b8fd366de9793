// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/report.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/utf8.h"
#include "apogee/report/files/run_data.h"
#include "apogee/report/html.h"
#include "apogee/report/sections.h"
#include "apogee/report/style.h"

namespace apogee::report {
namespace {

// Nothing may be loaded from anywhere. Styles and the script are in the page.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'";

// "out" of "/a/b/out/".
std::string LastPart(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  const std::string last = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return last.empty() || last == "." ? path : last;
}

absl::Status CheckFolders(const std::vector<std::string>& folders) {
  if (folders.empty()) {
    return InvalidArgument("report: give the output folder of at least one run");
  }
  std::map<std::string, std::string> seen;
  for (const std::string& folder : folders) {
    std::error_code error;
    std::string place = std::filesystem::canonical(folder, error).string();
    if (error) place = folder;  // reading it will tell why
    const auto [it, is_new] = seen.emplace(place, folder);
    if (!is_new) {
      return InvalidArgument("report: ", folder, " is given twice",
                             it->second == folder ? "" : " (as " + it->second + ", too)");
    }
  }
  return absl::OkStatus();
}

// The last parts of the paths, if they tell the runs apart.
void LabelRuns(Runs& runs) {
  std::map<std::string, int> count;
  for (const RunData& run : runs) ++count[LastPart(run.path)];
  for (RunData& run : runs) {
    const std::string last = LastPart(run.path);
    std::string copy;
    run.label = Printable(std::string(ReadableUtf8(count[last] == 1 ? last : run.path, copy)));
  }
}

std::string Title(const Runs& runs) {
  std::string title;
  for (const RunData& run : runs) title += (title.empty() ? "" : ", ") + run.label;
  return runs.size() > 4 ? std::to_string(runs.size()) + " runs" : title;
}

}  // namespace

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& folders) {
  APOGEE_RETURN_IF_ERROR(CheckFolders(folders));
  Runs runs;
  for (size_t i = 0; i < folders.size(); ++i) {
    APOGEE_ASSIGN_OR_RETURN(RunData run, ReadRun(folders[i], RunId(i)));
    runs.push_back(std::move(run));
  }
  LabelRuns(runs);
  const std::string title = HtmlText(Title(runs));
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"" +
         std::string(kPolicy) +
         "\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<title>" +
         title + " – training report</title>\n<style>" + kStyle +
         "</style>\n</head>\n<body>\n<header>\n<h1>" + title +
         "</h1>\n<nav><a href=\"#runs\">Runs</a> <a href=\"#training\">Training</a> "
         "<a href=\"#memory\">Memory</a> <a href=\"#layout\">Layout</a> "
         "<a href=\"#traffic\">Traffic</a> <a "
         "href=\"#events\">Events</a></nav>\n</header>\n<main>\n" +
         SummarySection(runs) + TrainingSection(runs) + MemorySection(runs) +
         PicturesSection(runs) + TrafficSection(runs) + EventsSection(runs) +
         "</main>\n<div id=\"tip\"></div>\n<script>" + kScript + "</script>\n</body>\n</html>\n";
}

absl::Status WriteReport(const std::vector<std::string>& folders, const std::string& path) {
  if (!path.ends_with(".html")) {
    return InvalidArgument("report: ", path,
                           " does not end in .html; give the file to write, such as report.html");
  }
  APOGEE_ASSIGN_OR_RETURN(const std::string page, MakeReport(folders));
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return InvalidArgument("cannot write ", path, ": it is a folder; give the file to write");
  }
  return LineFile::Replace(path, page);
}

}  // namespace apogee::report
