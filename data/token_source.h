// SPDX-License-Identifier: Apache-2.0

// TokenSource: a long sequence of token ids that is divided into documents.
//
//   APOGEE_ASSIGN_OR_RETURN(TokenSourcePtr source, OpenTokenFile("corpus.bin"));
//   std::vector<int32_t> tokens(1024);
//   source->Read(/*first=*/5000, tokens);                       // tokens 5000 to 6023
//   std::vector<int64_t> begins = source->DocumentBegins(5000, 1024);
//
// A source is immutable; several threads may use one.
#ifndef APOGEE_DATA_TOKEN_SOURCE_H_
#define APOGEE_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace apogee::data {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t num_tokens() const = 0;
  // Tokens [first, first + tokens.size()). Throws Error outside of [0, num_tokens()), and if a file
  // cannot be read any more.
  virtual void Read(int64_t first, std::span<int32_t> tokens) const = 0;
  // The positions in [first, first + length) at which a document begins, ascending. Position 0
  // begins one. Throws as Read does.
  virtual std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const = 0;
  // One line for people: the file, its format and size.
  virtual std::string description() const = 0;
  // Where token `index` is, for messages: "corpus.bin: token 17". The default names the source.
  virtual std::string PlaceOf(int64_t index) const {
    return description() + ": token " + std::to_string(index);
  }

 protected:
  // Throws Error unless [first, first + length) is in the source.
  void CheckRange(int64_t first, int64_t length) const;
};

using TokenSourcePtr = std::shared_ptr<const TokenSource>;

// Tokens in memory.
class MemoryTokenSource : public TokenSource {
 public:
  // `document_begins`: ascending positions of `tokens`, the first is 0. Throws Error otherwise; two
  // equal positions would be an empty document.
  explicit MemoryTokenSource(std::vector<int32_t> tokens,
                             std::vector<int64_t> document_begins = {0},
                             std::string description = "tokens in memory");
  // Throws Error for no documents and for an empty one.
  explicit MemoryTokenSource(const std::vector<std::vector<int32_t>>& documents);

  int64_t num_tokens() const override { return static_cast<int64_t>(tokens_.size()); }
  void Read(int64_t first, std::span<int32_t> tokens) const override;
  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override;
  std::string description() const override;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> begins_;
  std::string description_;
};

// A range of bytes of a text; keeps the text alive.
struct TextSpan {
  std::shared_ptr<const std::string> text;
  int64_t offset = 0;
  int64_t size = 0;
};
// The bytes of a text as tokens, one document.
TokenSourcePtr BytesAsTokens(TextSpan text);

// Tokens [first, first + num_tokens) of `source`; the first one begins a document. Throws Error for
// a part that is not in the source.
TokenSourcePtr SliceTokens(TokenSourcePtr source, int64_t first, int64_t num_tokens);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_SOURCE_H_
