// SPDX-License-Identifier: Apache-2.0

// TrainBpe: makes a tokenizer of byte-level BPE from a text.
//
//   APOGEE_ASSIGN_OR_RETURN(TrainedBpe trained, TrainBpe(text, {.vocab_size = 4096}));
//   // trained.json is a tokenizer.json, which LoadTokenizer and Hugging Face's library read
//
// The text is divided into pieces by `pattern`. Then the pair of tokens that is most frequent in
// all pieces becomes a token, of equal ones the pair with the smaller ids, until the vocabulary is
// full or no pair occurs twice. The result depends on the text and the options only.
#ifndef APOGEE_DATA_TOKENIZER_BPE_TRAIN_BPE_H_
#define APOGEE_DATA_TOKENIZER_BPE_TRAIN_BPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::data {

struct TrainBpeOptions {
  // Of all tokens: 256 bytes, the merged ones, the special ones.
  int64_t vocab_size = 4096;
  // "gpt2", "llama3" or "qwen2".
  std::string pattern = "gpt2";
  // They have the last ids.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  // A pair that occurs less often does not become a token.
  int64_t min_count = 2;
};

struct TrainedBpe {
  std::string json;
  int64_t vocab_size = 0;
};

absl::StatusOr<TrainedBpe> TrainBpe(std::string_view text, const TrainBpeOptions& options);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_TRAIN_BPE_H_
