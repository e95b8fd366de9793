// SPDX-License-Identifier: Apache-2.0

// Tokenize: texts to a token file, on several threads. The file's bytes depend neither on the
// number of threads nor on how often the run was killed and started again.
#ifndef APOGEE_TOOLS_DATA_TOKENIZE_H_
#define APOGEE_TOOLS_DATA_TOKENIZE_H_

#include <functional>

#include "apogee/data/token_files/token_file.h"
#include "apogee/tools/data/encode_piece.h"

namespace apogee::tools {

struct TokenizeOptions {
  std::string output;
  std::vector<InputFile> inputs;
  data::TokenFormat format = data::TokenFormat::kLlmc;
  EncodeOptions encode;
  TextInputOptions input;
  int num_threads = 1;
  // Bytes of input between entries of the journal.
  int64_t journal_bytes = int64_t{256} << 20;
};

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;
  int64_t num_tokens = 0, num_documents = 0, num_skipped = 0;
  bool resumed = false;
};

// `tokenizer_path`: the file of the tokenizer, by which the next run knows it again, or "byte".
// `report` is called from time to time and at the end. Whatever fails, nothing is left of the
// output. Only a process that is killed leaves a part, which the next one continues.
absl::StatusOr<TokenizeProgress> Tokenize(
    const data::Tokenizer& tokenizer, const std::string& tokenizer_path,
    const TokenizeOptions& options, const std::function<void(const TokenizeProgress&)>& report);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_TOKENIZE_H_
