// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/json_lines/instruction_reader.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/data/json_lines/line_reader.h"

namespace apogee::data {
namespace {

constexpr char kForm[] =
    "; a line is {\"prompt\": \"...\", \"completion\": \"...\"} or {\"text\": \"...\"}";
constexpr size_t kMaxOthers = 8;

absl::Status Problem(const std::string& what) { return InvalidArgument(what, kForm); }

}  // namespace

InstructionReader::InstructionReader(const Tokenizer& tokenizer, const InstructionOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      names_{"prompt", "completion", "text"},
      prefix_(tokenizer.prefix()) {
  APOGEE_CHECK(options_.block >= 2, "Instructions: block must be at least 2, got ", options_.block,
               ": a token is learned from the ones before it");
  APOGEE_CHECK(options_.end_of_text >= 0, "Instructions: end_of_text must be a token id, got ",
               options_.end_of_text);
}

absl::Status InstructionReader::Read(const RandomBytes& file) {
  LineReader reader(file, options_.max_line_bytes);
  std::string line;
  while (true) {
    APOGEE_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) break;
    const absl::Status added =
        reader.number() == 1 && line.starts_with("\xEF\xBB\xBF")
            ? InvalidArgument("begins with a byte order mark; save the file as UTF-8 without one")
            : Add(line);
    if (!added.ok()) {
      return InvalidArgument(file.path(), ": line ", reader.number(), ": ", Message(added));
    }
  }
  if (reader.number() == 0) return InvalidArgument(file.path(), ": is empty", kForm);
  return absl::OkStatus();
}

absl::Status InstructionReader::Add(const std::string& line) {
  if (line.empty() || line == "\r") return InvalidArgument("is empty; remove it");
  APOGEE_ASSIGN_OR_RETURN(const JsonLine fields, ReadJsonLine(line, names_));
  const std::optional<std::string>&prompt = fields.values[0], &completion = fields.values[1],
        &text = fields.values[2];
  NoteOthers(fields.others);
  std::vector<int32_t> inputs = prefix_;
  if (text.has_value()) {
    if (prompt.has_value() || completion.has_value()) {
      return Problem("has \"text\" and \"" +
                     std::string(prompt.has_value() ? "prompt" : "completion") + "\"");
    }
    if (text->empty()) return InvalidArgument("its text is empty; remove the line");
    return AddTokens(inputs, *text);
  }
  if (!prompt.has_value() || !completion.has_value()) {
    const bool neither = !prompt.has_value() && !completion.has_value();
    return Problem(neither              ? "has neither \"prompt\" and \"completion\" nor \"text\""
                   : prompt.has_value() ? "has a \"prompt\" and no \"completion\""
                                        : "has a \"completion\" and no \"prompt\"");
  }
  if (prompt->empty() && completion->empty()) {
    return InvalidArgument("its prompt and its completion are empty; remove the line");
  }
  tokenizer_.Encode(*prompt, inputs);
  return AddTokens(inputs, *completion);
}

absl::Status InstructionReader::AddTokens(const std::vector<int32_t>& prompt,
                                          std::string_view completion) {
  std::vector<int32_t> ids = prompt;
  tokenizer_.Encode(completion, ids);
  ids.push_back(options_.end_of_text);
  const auto block = static_cast<size_t>(options_.block);
  if (prompt.size() >= block) {
    return InvalidArgument("its prompt has ", prompt.size(), " tokens, a sample has at most ",
                           options_.block,
                           ": nothing of it would be learned; take a larger block, or remove the "
                           "line");
  }
  if (ids.size() == 1) {
    return InvalidArgument("its text has no token of this tokenizer; remove the line");
  }
  if (ids.size() > block) {
    ids.resize(block);
    ++num_cut_;
  }
  begins_.push_back(static_cast<int64_t>(tokens_.size()));
  prompts_.push_back(static_cast<int64_t>(prompt.size()));
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  return absl::OkStatus();
}

void InstructionReader::NoteOthers(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (others_.size() == kMaxOthers) return;
    if (std::ranges::find(others_, name) == others_.end()) others_.push_back(name);
  }
}

Instructions InstructionReader::Finish(const std::string& description) {
  Instructions all{.tokens = std::make_shared<MemoryTokenSource>(std::move(tokens_),
                                                                 std::move(begins_), description),
                   .prompts = std::move(prompts_),
                   .block = options_.block,
                   .pad = options_.end_of_text};
  if (num_cut_ > 0) {
    all.notices.push_back(internal::Concat(description, ": ", FormatThousands(num_cut_), " of ",
                                           FormatThousands(all.size()), " samples have more than ",
                                           options_.block, " tokens and were cut at their end"));
  }
  if (!others_.empty()) {
    all.notices.push_back(description + ": only prompt, completion and text are used, not " +
                          JoinTexts(others_, ", "));
  }
  return all;
}

}  // namespace apogee::data
