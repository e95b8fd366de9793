// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/instructions.h"

#include <algorithm>
#include <span>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/data/json_lines/instruction_reader.h"

namespace apogee::data {

int64_t Instructions::num_targets() const {
  int64_t count = tokens->num_tokens();
  // The first token of a document follows no other one.
  for (const int64_t prompt : prompts) count -= std::max<int64_t>(prompt, 1);
  return count;
}

std::vector<int32_t> Instructions::BeginningOf(int64_t index) const {
  constexpr int64_t kBeginning = 16;
  const Instructions one = Part(index, 1);
  const int64_t prompt = one.prompts[0], all = one.tokens->num_tokens();
  std::vector<int32_t> ids(
      static_cast<size_t>(prompt > 1 ? prompt : std::min(kBeginning, (all + 1) / 2)));
  one.tokens->Read(0, ids);
  return ids;
}

Instructions Instructions::Part(int64_t first, int64_t count) const {
  APOGEE_CHECK(first >= 0 && count >= 1 && first <= size() - count, "Instructions: samples [",
               first, ", ", first, " + ", count, ") are outside of [0, ", size(), ")");
  std::vector<int64_t> begins = tokens->DocumentBegins(0, tokens->num_tokens());
  begins.push_back(tokens->num_tokens());
  const int64_t begin = begins[static_cast<size_t>(first)];
  const int64_t end = begins[static_cast<size_t>(first + count)];
  const auto prompt = prompts.begin() + first;
  return {.tokens = SliceTokens(tokens, begin, end - begin),
          .prompts = {prompt, prompt + count},
          .block = block,
          .pad = pad};
}

std::shared_ptr<const Dataset> Instructions::Samples(bool pack) const {
  // The dataset asks once for each document, in order.
  const PromptFunction prompt = [lengths = prompts, next = size_t{0}](
                                    std::span<const int32_t>) mutable { return lengths[next++]; };
  if (pack) {
    return std::make_shared<PackedDataset>(
        tokens, PackedOptions{.block = block, .pad = pad, .prompt = prompt});
  }
  return std::make_shared<DocumentDataset>(
      tokens, DocumentOptions{.block = block, .pad = pad, .prompt = prompt});
}

absl::StatusOr<Instructions> ReadInstructions(const std::vector<std::string>& paths,
                                              const Tokenizer& tokenizer,
                                              const InstructionOptions& options) {
  if (paths.empty()) return InvalidArgument("data: no path given; give at least one .jsonl file");
  InstructionReader reader(tokenizer, options);
  for (const std::string& path : paths) {
    APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<RandomBytes> file, OpenBytes(path));
    APOGEE_RETURN_IF_ERROR(reader.Read(*file));
  }
  return reader.Finish(JoinTexts(paths, ", "));
}

}  // namespace apogee::data
