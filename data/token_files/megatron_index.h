// SPDX-License-Identifier: Apache-2.0

// The index of a Megatron pair: where the sequences lie in NAME.bin, and which of them make a
// document.
//
//   bytes  9   "MMIDIDX\0\0"
//          8   u64 version 1
//          1   u8 code of the ids' type
//          8   u64 number of sequences, n
//          8   u64 number of document indices, m
//          4n  i32 lengths in tokens
//          8n  i64 byte offsets in NAME.bin
//          8m  i64 document indices: document d is the sequences [index d, index d + 1)
//          n   i8 modes, in files of several modalities; may be absent
//
// Reads the arrays when it is asked. In memory it keeps the position of every 128th sequence and
// every 128th document index: less than a hundredth of the index's size.
#ifndef APOGEE_DATA_TOKEN_FILES_MEGATRON_INDEX_H_
#define APOGEE_DATA_TOKEN_FILES_MEGATRON_INDEX_H_

#include <vector>

#include "apogee/data/token_files/token_bytes.h"

namespace apogee::data {

inline constexpr int64_t kMegatronHeaderBytes = 34;
extern const char kMegatronMagic[9];
// The code of a type in the index.
uint8_t MegatronCode(TokenType type);

class MegatronIndex {
 public:
  // Checks all of it, the offsets and lengths against the size of NAME.bin. DataLoss with file,
  // field, value and what would be right.
  static absl::StatusOr<MegatronIndex> Read(std::unique_ptr<RandomBytes> idx,
                                            const std::string& bin_path, int64_t bin_bytes);

  TokenType type() const { return type_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_indices_ - 1; }
  bool has_modes() const { return has_modes_; }

  // A part of a sequence, or of several that follow each other in NAME.bin.
  struct Run {
    int64_t byte = 0;  // in NAME.bin
    int64_t num_tokens = 0;
  };
  // The run that begins with token `position`; at most `most` tokens.
  absl::StatusOr<Run> RunAt(int64_t position, int64_t most) const;
  // The positions in [first, first + length) at which a document begins, ascending; a document
  // without tokens begins nowhere.
  absl::StatusOr<std::vector<int64_t>> DocumentBegins(int64_t first, int64_t length) const;
  absl::StatusOr<int8_t> Mode(int64_t sequence) const;

 private:
  explicit MegatronIndex(std::unique_ptr<RandomBytes> idx) : idx_(std::move(idx)) {}
  absl::Status ReadHeader();
  absl::Status CheckSequences(const std::string& bin_path, int64_t bin_bytes);
  absl::Status CheckDocuments();
  absl::Status ReadLengths(int64_t first, std::span<int32_t> lengths) const;
  absl::Status ReadOffsets(int64_t first, std::span<int64_t> offsets) const;
  absl::Status ReadIndices(int64_t first, std::span<int64_t> indices) const;

  std::unique_ptr<RandomBytes> idx_;
  TokenType type_ = TokenType::kU16;
  int64_t num_sequences_ = 0, num_indices_ = 0, num_tokens_ = 0, bin_bytes_ = 0;
  bool has_modes_ = false;
  bool tiled_ = true;  // the sequences follow each other from byte 0 on
  // Of every 128th sequence its position, and every 128th document index.
  std::vector<int64_t> starts_, marks_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_MEGATRON_INDEX_H_
