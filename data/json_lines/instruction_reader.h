// SPDX-License-Identifier: Apache-2.0

// InstructionReader: makes Instructions from files, line by line.
//
//   InstructionReader reader(*tokenizer, {.block = 512, .end_of_text = 2});
//   APOGEE_RETURN_IF_ERROR(reader.Read(*file));                   // of each file
//   Instructions all = reader.Finish("train.jsonl");
#ifndef APOGEE_DATA_JSON_LINES_INSTRUCTION_READER_H_
#define APOGEE_DATA_JSON_LINES_INSTRUCTION_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/data/instructions.h"
#include "apogee/data/json_lines/json_line.h"
#include "apogee/data/token_files/token_bytes.h"

namespace apogee::data {

class InstructionReader {
 public:
  // The tokenizer must outlive it. Throws Error for a block below 2 or a negative id.
  InstructionReader(const Tokenizer& tokenizer, const InstructionOptions& options);
  // Errors as in ReadInstructions.
  absl::Status Read(const RandomBytes& file);
  // What was read; there must be a sample. `description`: of the files, for messages.
  Instructions Finish(const std::string& description);

 private:
  // The sample of a line. Errors lack the place.
  absl::Status Add(const std::string& line);
  absl::Status AddTokens(const std::vector<int32_t>& prompt, std::string_view completion);
  void NoteOthers(const std::vector<std::string>& names);

  const Tokenizer& tokenizer_;
  InstructionOptions options_;
  std::vector<std::string> names_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> begins_, prompts_;
  std::vector<std::string> others_;
  int64_t num_cut_ = 0;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_JSON_LINES_INSTRUCTION_READER_H_
