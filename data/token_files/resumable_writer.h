// SPDX-License-Identifier: Apache-2.0

// ResumableWriter: the writer of token files, with what the tools need beyond TokenFileWriter: ids
// of 64 bits, and the state from which another process continues a file after this one was killed.
//
//   APOGEE_ASSIGN_OR_RETURN(
//       auto file, ResumableWriter::Open("corpus.bin", TokenFormat::kLlmc, TokenType::kU16, {}));
//   ...
//   APOGEE_RETURN_IF_ERROR(file->Sync());
//   const TokenWriterState state = file->state();     // store it, and give it to Open later
#ifndef APOGEE_DATA_TOKEN_FILES_RESUMABLE_WRITER_H_
#define APOGEE_DATA_TOKEN_FILES_RESUMABLE_WRITER_H_

#include "apogee/data/token_files/token_bytes.h"
#include "apogee/data/token_files/token_file.h"

namespace apogee::data {

struct TokenWriterState {
  int64_t num_tokens = 0;
  int64_t open_tokens = 0;    // of the document that has not ended
  int64_t num_documents = 0;  // that have ended
};

// The width of ids in a new file.
TokenType WrittenType(TokenFormat format, int64_t vocab_size);
// The largest id that a type holds.
int64_t LargestId(TokenType type);

class ResumableWriter : public TokenFileWriter {
 public:
  // Continues after `state`; an empty one begins a file. llmc takes u16 and u32, megatron any
  // integer type but u32.
  static absl::StatusOr<std::unique_ptr<ResumableWriter>> Open(const std::string& path,
                                                               TokenFormat format, TokenType type,
                                                               const TokenWriterState& state);
  using TokenFileWriter::Append;
  virtual absl::Status Append(std::span<const int64_t> ids) = 0;
  virtual absl::Status Sync() = 0;
  virtual TokenWriterState state() const = 0;
  virtual TokenType type() const = 0;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_RESUMABLE_WRITER_H_
