// SPDX-License-Identifier: Apache-2.0

// The tokens that a program trains on and validates with, from text or from token files.
//
//   driver::DataFlags flags{.data = {"fineweb_*.bin"}, .tokenizer = "gpt2/tokenizer.json"};
//   APOGEE_ASSIGN_OR_RETURN(driver::Corpus corpus, driver::LoadCorpus(flags));
//   data::BlockDataset train(corpus.train, {.block = flags.block, .stride = 1});
//
// The last tenth is for validation. Text is cut before it is tokenised, so that every tokenizer is
// validated on the same text; only bytes are cut in the middle of a line.
#ifndef APOGEE_DRIVER_CORPUS_H_
#define APOGEE_DRIVER_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/token_source.h"
#include "apogee/data/tokenizer/tokenizer.h"
#include "apogee/driver/command_line.h"

namespace apogee::driver {

struct DataFlags {
  std::vector<std::string> data = {};  // text or token files; empty: the King James Bible
  std::string tokenizer = "byte";
  int64_t train_tokenizer = 0;    // tokens of a BPE to train; 0: none
  std::string token_format = "";  // of raw token files
  int64_t block = 128;            // tokens of context

  void Declare(CommandLine& line);
  // Throws Error for flags that exclude each other.
  void Settle() const;
};

struct Corpus {
  data::TokenizerPtr tokenizer;
  data::TokenSourcePtr train, validation;
  // The validation text's bytes if it was a text; 0 for token files, whose tokens must be decoded.
  int64_t validation_bytes = 0;
  const char* unit = "tokens";  // "bytes" if a token is a byte
  // The tokenizer.json of a tokenizer that was trained; "" without one.
  std::string tokenizer_json = {};
  // For people: the source, and what was taken instead of something that is missing ("": nothing).
  std::string description, notice;
  // Size and checksum of the training part: "3724065 bytes of text (crc 1a2b3c4d)".
  std::string fingerprint;
};

// Errors are a Status that names the file, or says how much text is needed.
absl::StatusOr<Corpus> LoadCorpus(const DataFlags& flags);

// The bytes of text that the first `num_tokens` validation tokens stand for. Of a token file it
// decodes them.
int64_t ValidationBytes(const Corpus& corpus, int64_t num_tokens);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_CORPUS_H_
