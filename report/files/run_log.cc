// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/run_log.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace apogee::report {
namespace {

// Removes `words` from the begin of the text, if they are there.
bool Take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

// Removes blanks and a whole number from the begin of the text.
std::optional<int64_t> TakeStep(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || step < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return step;
}

// Whether the line is in metrics.jsonl, in validation.jsonl, or among the skipped or saved steps.
bool TakeKnown(std::string_view line, RunLog& log) {
  if (Take(line, "saved step ")) {
    const std::optional<int64_t> step = TakeStep(line);
    if (!step || !line.empty()) return false;
    log.saved.push_back(*step);
    return true;
  }
  if (!Take(line, "step ")) return false;
  const std::optional<int64_t> step = TakeStep(line);
  if (!step) return false;
  if (line.starts_with("/") || line.starts_with(": validation loss ")) return true;
  if (!Take(line, " changed nothing: ")) return false;
  log.skipped.push_back({*step, std::string(line)});
  return true;
}

}  // namespace

RunLog ReadRunLog(const std::string& text) {
  RunLog log;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (TakeKnown(line, log)) continue;
    if (std::string_view model = line; Take(model, "model: ")) log.model = model;
    log.notes.emplace_back(line);
  }
  return log;
}

}  // namespace apogee::report
