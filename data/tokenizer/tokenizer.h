// SPDX-License-Identifier: Apache-2.0

// Tokenizer: text to token ids and back.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenizerPtr tokenizer, LoadTokenizer("tokenizer.json"));
//   std::vector<int32_t> ids;
//   tokenizer->Encode("In the beginning", ids);
//   std::string text = tokenizer->Decode(ids);
//
// Ids are in [0, vocab_size()). A tokenizer is immutable; several threads may use one.
#ifndef APOGEE_DATA_TOKENIZER_TOKENIZER_H_
#define APOGEE_DATA_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Appends the ids of `text`. Special tokens that stand in the text are recognised (SentencePiece
  // does not recognise its control symbols). None is added at the beginning or the end. Bytes that
  // are no UTF-8 are read as U+FFFD, one per maximal subpart, unless the tokenizer is over bytes.
  virtual void Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // The text of `ids`; with `skip_special` without special tokens. Sequences of bytes that are no
  // UTF-8 become U+FFFD, unless the tokenizer is over bytes. Throws Error for an id outside of
  // [0, vocab_size()).
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  // The largest id + 1: the number of rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;
  // The id of a token by its name, such as "<|endoftext|>"; empty if there is none.
  virtual std::optional<int32_t> IdOf(std::string_view token) const = 0;
  // The special token that ends a document; empty if the tokenizer has none. Token files divide
  // documents with it.
  virtual std::optional<int32_t> end_of_text() const = 0;
  // One line for people: kind and size.
  virtual std::string description() const = 0;

  // The ids that the file asks to put before and after a text, such as "<s>". Encode adds none.
  virtual std::vector<int32_t> prefix() const { return {}; }
  virtual std::vector<int32_t> suffix() const { return {}; }
  // A place to cut a long text that is read in parts: its first n bytes can be encoded alone, and
  // the rest together with the text that follows. The ids are the same whatever follows. 0 if no
  // such place is known.
  virtual size_t SafeCut(std::string_view /*text*/) const { return 0; }
};

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

// Throws Error with both sizes if a model's vocabulary lacks ids of the tokenizer. A larger
// vocabulary is padding.
void CheckFits(const Tokenizer& tokenizer, int64_t model_vocab_size);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_TOKENIZER_H_
