// SPDX-License-Identifier: Apache-2.0

// TextCorpus: text as bytes, split into a training and a validation part.
//
//   absl::StatusOr<TextCorpus> corpus = TextCorpus::Load({"kjv.txt"}, {.block = 128});
//   auto train = std::make_shared<TextDataset>(corpus->train(), 128);
//
// The validation part is the end of the text, so no training sample overlaps it.
#ifndef APOGEE_DATA_TEXT_CORPUS_H_
#define APOGEE_DATA_TEXT_CORPUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/token_source.h"

namespace apogee::data {

struct TextSource;  // corpus_sources.h

struct TextCorpusOptions {
  // Tokens per sample. Each part must have room for one sample and its shifted targets: block + 1
  // bytes.
  int64_t block = 128;
  // The fraction of the bytes, at the end, that is kept for validation; in (0, 1).
  double validation_fraction = 0.1;
};

class TextCorpus {
 public:
  static constexpr int64_t kVocabSize = 256;

  // Reads files and directories (see ReadTextFiles); without paths the default text
  // (ReadDefaultText). Errors: NotFound and InvalidArgument name the path, or the length that would
  // be enough.
  static absl::StatusOr<TextCorpus> Load(const std::vector<std::string>& paths,
                                         const TextCorpusOptions& options = {});
  static absl::StatusOr<TextCorpus> FromSource(TextSource source,
                                               const TextCorpusOptions& options = {});

  // The parts share the corpus' memory and keep it alive.
  TextSpan train() const { return {text_, 0, train_bytes_}; }
  TextSpan validation() const { return {text_, train_bytes_, num_bytes() - train_bytes_}; }
  int64_t num_bytes() const { return static_cast<int64_t>(text_->size()); }
  // See TextSource.
  const std::string& description() const { return description_; }
  const std::string& notice() const { return notice_; }

 private:
  TextCorpus() = default;

  std::shared_ptr<const std::string> text_;
  int64_t train_bytes_ = 0;
  std::string description_;
  std::string notice_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TEXT_CORPUS_H_
