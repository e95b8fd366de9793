// SPDX-License-Identifier: Apache-2.0

// Token files: tokenised text in the formats that trainers use.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenSourcePtr corpus,
//                           OpenTokenFile("fineweb_train_*.bin", {.vocab_size = 50257}));
//   APOGEE_ASSIGN_OR_RETURN(auto file,
//                           TokenFileWriter::Create("corpus.bin", {.vocab_size = 4096}));
//   APOGEE_RETURN_IF_ERROR(file->Append(ids));
//   APOGEE_RETURN_IF_ERROR(file->EndDocument());
//   APOGEE_RETURN_IF_ERROR(file->Finish());           // now corpus.bin exists, whole
//
//   format    files                ids                           documents
//   llmc      256 int32, then ids  u16 (magic 20240520) or u32   begin with the end-of-text id
//                                  (magic 20240801)
//   raw_u16   ids only             u16                           begin after an end-of-text id
//   raw_u32   ids only             u32                           begin after an end-of-text id
//   megatron  NAME.idx, NAME.bin   u8, i8, u16, i16, i32, i64    in the index
//
// Everything is little-endian. Nothing in a file is believed before it has been compared with the
// file's real size, and nothing is allocated because a count says so. Files are read by pread and
// never mapped: if a mapped file shrinks, the process gets SIGBUS, and to survive that takes a
// signal handler, which is global. pread gives an error instead. It keeps up with a loader
// (docs/benchmarks/data_and_checkpoints.md), opens a file of any size at once, and only the pages
// of the cache hold it.
//
// Each open file takes one descriptor, a Megatron pair two (see ulimit -n).
#ifndef APOGEE_DATA_TOKEN_FILES_TOKEN_FILE_H_
#define APOGEE_DATA_TOKEN_FILES_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/token_source.h"

namespace apogee::data {

enum class TokenFormat { kLlmc, kRawU16, kRawU32, kMegatron };
// "llmc", "raw_u16", "raw_u32", "megatron".
const char* Name(TokenFormat format);
absl::StatusOr<TokenFormat> ParseTokenFormat(const std::string& name);
// Whether the end-of-text id stands before each document, as llm.c writes it, and not after it.
bool BeginsWithEndOfText(TokenFormat format);

struct TokenFileOptions {
  // Empty: recognised by content and name. Raw files cannot be recognised.
  std::optional<TokenFormat> format = {};
  // The id that divides documents; -1: none does. Empty: llm.c's 50256 (u16) and 128000 (u32), none
  // in raw files. Megatron files do not need it.
  std::optional<int64_t> end_of_text = {};
  // Read throws Error for an id that is not below it. 0: for one that an int32 cannot hold.
  int64_t vocab_size = 0;
};

// Opens a file, or all files that match a pattern with * ? [], in the order of their names, as one
// source. Of a Megatron pair the path names either file.
// Errors: NotFound; DataLoss for a file that is malformed; InvalidArgument for a wrong option and
// for files of different formats. Each names file, field and value, and says what would be right.
absl::StatusOr<TokenSourcePtr> OpenTokenFile(const std::string& path,
                                             const TokenFileOptions& options = {});
// The same for several paths or patterns. The files follow each other, and each begins a document.
absl::StatusOr<TokenSourcePtr> OpenTokenFiles(const std::vector<std::string>& paths,
                                              const TokenFileOptions& options = {});

// Reads everything. OutOfRange names file, index and value of the first id that is not in
// [0, vocab_size); other errors are those of reading.
absl::Status CheckTokenIds(const TokenSource& source, int64_t vocab_size);

struct TokenWriterOptions {
  TokenFormat format = TokenFormat::kLlmc;
  // Chooses the width in llmc (u16 up to 65536) and megatron (u16 below 65500, as Megatron does,
  // else i32). 0: 32 bits.
  int64_t vocab_size = 0;
};

// Writes a token file under temporary names beside the path. Finish gives it its name; whatever
// happens before, there is no file of that name. Not thread-safe. After an error only the
// destructor may be called.
class TokenFileWriter {
 public:
  // AlreadyExists if there is something of that name: nothing is overwritten. Of a Megatron pair
  // `path` names either file.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(const std::string& path,
                                                                 const TokenWriterOptions& options);
  // Removes what Finish has not named.
  virtual ~TokenFileWriter() = default;

  // More ids of the current document. OutOfRange names index and value of an id that does not fit
  // the format's width, ResourceExhausted says that the disk is full or that llm.c's 31 bits
  // cannot count the tokens.
  virtual absl::Status Append(std::span<const int32_t> ids) = 0;
  // Megatron: the ids since the last call become one document of one sequence. The other formats
  // have no boundaries but the end-of-text ids that the caller appends.
  virtual absl::Status EndDocument() = 0;
  // Syncs and names the file. Ends an open document.
  virtual absl::Status Finish() = 0;
  virtual int64_t num_tokens() const = 0;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_TOKEN_FILE_H_
