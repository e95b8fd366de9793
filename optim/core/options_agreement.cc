// SPDX-License-Identifier: Apache-2.0

// StepRunner::ThrowOptionsDiffer.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/gather_texts.h"
#include "apogee/optim/step/step_runner.h"

namespace apogee::optim {
namespace {

using internal::Concat;

// Two lines per option: its place and name, then its value.
std::string Describe(const OptionTable& options, const StepOptions& step) {
  std::string text;
  for (int group = 0; group < options.num_groups(); ++group) {
    for (const auto& [name, value] : options.Text(group)) {
      text += Concat("the options of group ", group, ": ", name, "\n", value, "\n");
    }
  }
  const std::pair<const char*, std::string> more[] = {
      {"max_norm", FormatOption(step.max_norm)},
      {"norm_kind", FormatOption(static_cast<int64_t>(step.norm_kind))},
      {"nonfinite", FormatOption(static_cast<int64_t>(step.nonfinite))},
      {"loss_scale", FormatOption(step.loss_scale)}};
  for (const auto& [name, value] : more)
    text += Concat("its step options: ", name, "\n", value, "\n");
  return text;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// "0.001 on ranks [0 2], 0.5 on rank 1"
std::string WhoHasWhat(const std::vector<std::string>& values, const std::vector<int>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> all;
  for (size_t i = 0; i < values.size(); ++i) {
    auto found =
        std::ranges::find(all, values[i], &std::pair<std::string, std::vector<int>>::first);
    if (found == all.end()) found = all.insert(all.end(), {values[i], {}});
    found->second.push_back(ranks[i]);
  }
  std::string text;
  for (const auto& [value, where] : all) {
    text += Concat(text.empty() ? "" : ", ", value, " on rank", where.size() > 1 ? "s " : " ",
                   where.size() > 1 ? comm::FormatRanks(where) : std::to_string(where[0]));
  }
  return text;
}

}  // namespace

void StepRunner::ThrowOptionsDiffer(comm::Group* group) const {
  const std::string what =
      Concat("step: ranks disagree on the options of optimizer ", store_.optimizer());
  constexpr const char* kRemedy = "; set options, learning rates and schedules alike on every rank";
  if (group == nullptr) Throw(what, kRemedy);
  const ContextPtr context = store_.views()[0].state_context();
  std::vector<std::vector<std::string>> all;
  for (const std::string& text :
       comm::GatherTexts(Describe(rule_.options_table(), options_), *group, context)) {
    all.push_back(Lines(text));
  }
  for (size_t line = 0; line + 1 < all[0].size(); line += 2) {
    std::vector<std::string> values;
    for (const auto& lines : all) {
      values.push_back(line + 1 < lines.size() && lines[line] == all[0][line] ? lines[line + 1]
                                                                              : "(none)");
    }
    const bool same = std::ranges::all_of(values, [&](const auto& v) { return v == values[0]; });
    if (same) continue;
    const size_t colon = all[0][line].rfind(": ");
    Throw("step: ranks disagree on ", all[0][line].substr(0, colon), " of optimizer ",
          store_.optimizer(), ": ", all[0][line].substr(colon + 2), " is ",
          WhoHasWhat(values, group->world_ranks()), kRemedy);
  }
  Throw(what,
        " in the last step, but not any more: an option changed between backward() and step() on "
        "some ranks only, so the weights of ranks have drifted apart; set options alike on every "
        "rank, and resume from a checkpoint");
}

}  // namespace apogee::optim
