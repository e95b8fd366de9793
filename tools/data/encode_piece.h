// SPDX-License-Identifier: Apache-2.0

// EncodePiece: the ids of a piece of input, with the ends of its documents. Several threads may
// call it.
#ifndef APOGEE_TOOLS_DATA_ENCODE_PIECE_H_
#define APOGEE_TOOLS_DATA_ENCODE_PIECE_H_

#include <optional>
#include <vector>

#include "apogee/tools/data/text_input.h"

namespace apogee::tools {

struct EncodeOptions {
  std::string field = "text";
  std::optional<int32_t> end_of_text;
  bool begins_with_end_of_text = false;
  // Leaves out documents without text. Otherwise they are errors.
  bool skip_empty = false;
};

struct EncodedPiece {
  std::vector<int32_t> ids;
  // ids.size() at each end of a document.
  std::vector<size_t> ends;
  int64_t num_skipped = 0;
};

// InvalidArgument names file and line.
absl::StatusOr<EncodedPiece> EncodePiece(const data::Tokenizer& tokenizer, const TextPiece& piece,
                                         const EncodeOptions& options);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_ENCODE_PIECE_H_
