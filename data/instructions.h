// SPDX-License-Identifier: Apache-2.0

// Instructions: samples of a prompt and its completion, from JSON Lines. The prompt is an input and
// is not learned.
//
//   {"prompt": "Who made the earth? ", "completion": "God."}
//   {"text": "In the beginning God created the heaven."}             // all of it is learned
//
//   APOGEE_ASSIGN_OR_RETURN(const Instructions all,
//                           ReadInstructions({"train.jsonl"}, *tokenizer,
//                                            {.block = 512, .end_of_text = 2}));
//   const std::shared_ptr<const Dataset> padded = all.Samples(/*pack=*/false);
//
// The tokens of a sample are the tokenizer's prefix ("<s>", if its file asks for one), the prompt,
// the completion, and the end-of-text token. Prompt and completion are encoded apart, so that the
// prompt has the tokens that it has when a text is generated from it. Where a tokenizer would merge
// characters across that border, the whole text has other tokens; put a space at the begin of the
// completion rather than at the end of the prompt. Special tokens that stand in the text are
// recognised.
//
// A sample of more tokens than the block is cut at its end, and so does not learn to end.
#ifndef APOGEE_DATA_INSTRUCTIONS_H_
#define APOGEE_DATA_INSTRUCTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/token_dataset.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::data {

struct InstructionOptions {
  int64_t block = 128;      // tokens of a sample at most; at least 2
  int32_t end_of_text = 0;  // the id behind each completion; also pads
  // A line is in memory as a whole.
  int64_t max_line_bytes = int64_t{64} << 20;
};

struct Instructions {
  TokenSourcePtr tokens;         // a document per sample
  std::vector<int64_t> prompts;  // of each sample the tokens that are not learned
  int64_t block = 0;
  int32_t pad = 0;
  // Sentences about what was cut or not used.
  std::vector<std::string> notices = {};

  int64_t size() const { return static_cast<int64_t>(prompts.size()); }
  // Tokens that are targets.
  int64_t num_targets() const;
  // The tokens of a sample's prompt; of one that is learned from its beginning on, some tokens.
  std::vector<int32_t> BeginningOf(int64_t index) const;
  // Samples [first, first + count), without the notices. Throws Error outside of [0, size()).
  Instructions Part(int64_t first, int64_t count) const;
  // Each sample alone, padded behind (DocumentDataset). With `pack`, as many samples as fit one
  // after the other, with `starts` (PackedDataset). Both have the same targets.
  std::shared_ptr<const Dataset> Samples(bool pack) const;
};

// The samples of the files' lines, in order. InvalidArgument names file and line: no JSON object,
// no UTF-8, no completion, a field that is no string, an empty line or text, a prompt that fills
// the block; also for a file without a line. ResourceExhausted for a line of more than
// max_line_bytes. Other fields of a line have no effect and give a notice.
absl::StatusOr<Instructions> ReadInstructions(const std::vector<std::string>& paths,
                                              const Tokenizer& tokenizer,
                                              const InstructionOptions& options);

}  // namespace apogee::data

#endif  // APOGEE_DATA_INSTRUCTIONS_H_
