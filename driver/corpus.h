// SPDX-License-Identifier: Apache-2.0

// The tokens that a program trains on and validates with, from text or from token files.
//
//   driver::DataFlags flags{.data = {"fineweb_*.bin"}, .tokenizer = "gpt2/tokenizer.json"};
//   APOGEE_ASSIGN_OR_RETURN(driver::Corpus corpus, driver::LoadCorpus(flags));
//   data::Loader loader(corpus.train_samples, sampler, context, {.batch = 8});
//
// The last tenth is for validation. Text is cut before it is tokenised, so that every tokenizer is
// validated on the same text; only bytes are cut in the middle of a line. Samples of prompts and
// completions (data/instructions.h) are not cut.
#ifndef APOGEE_DRIVER_CORPUS_H_
#define APOGEE_DRIVER_CORPUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/data/dataset.h"
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
  // For a program that goes on training a model: the tokenizer is the model's, so there are no
  // flags for it, and `data` may be JSON Lines (.jsonl) of prompts and completions.
  bool fine_tunes = false;
  bool pack = false;             // of JSON Lines: several samples in one sequence
  std::string end_of_text = {};  // of JSON Lines: the token behind a completion, by its name
  int64_t end_of_text_id = -1;   // without a name; -1: the tokenizer's

  void Declare(CommandLine& line);
  // Throws Error for flags that exclude each other.
  void Settle() const;
};

struct Corpus {
  data::TokenizerPtr tokenizer;
  data::TokenSourcePtr train, validation;
  // Blocks that begin at every token, or the samples of JSON Lines; with `pack` they have `starts`.
  std::shared_ptr<const data::Dataset> train_samples;
  // Each token or sample once.
  std::shared_ptr<const data::Dataset> validation_samples;
  // The number of training samples in which each token is once.
  int64_t epoch_samples = 0;
  // Two prompts, or beginnings, of the validation part.
  std::vector<std::string> prompts = {};
  int32_t end_of_text = -1;  // the token behind each sample of JSON Lines; else -1
  // The validation text's bytes if it was a text; 0 for token files, whose tokens must be decoded;
  // -1 for JSON Lines, of which not all tokens are learned.
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

// The bytes of text that the first `num_tokens` validation tokens stand for; 0 for JSON Lines. Of a
// token file it decodes them.
int64_t ValidationBytes(const Corpus& corpus, int64_t num_tokens);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_CORPUS_H_
