// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_source.h"

#include <algorithm>
#include <utility>

#include "apogee/core/error.h"
#include "apogee/core/text/text.h"

namespace apogee::data {
namespace {

class ByteTokens : public TokenSource {
 public:
  explicit ByteTokens(TextSpan text) : text_(std::move(text)) {}
  int64_t num_tokens() const override { return text_.size; }
  void Read(int64_t first, std::span<int32_t> tokens) const override {
    CheckRange(first, static_cast<int64_t>(tokens.size()));
    const char* bytes = text_.text->data() + text_.offset + first;
    std::transform(bytes, bytes + tokens.size(), tokens.begin(),
                   [](char byte) { return static_cast<unsigned char>(byte); });
  }
  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override {
    CheckRange(first, length);
    return first == 0 && length > 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{};
  }
  std::string description() const override {
    return "a text of " + FormatThousands(text_.size) + " bytes";
  }

 private:
  TextSpan text_;
};

class Slice : public TokenSource {
 public:
  Slice(TokenSourcePtr source, int64_t first, int64_t num_tokens)
      : source_(std::move(source)), first_(first), num_tokens_(num_tokens) {}

  int64_t num_tokens() const override { return num_tokens_; }
  void Read(int64_t first, std::span<int32_t> tokens) const override {
    CheckRange(first, static_cast<int64_t>(tokens.size()));
    source_->Read(first_ + first, tokens);
  }
  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override {
    CheckRange(first, length);
    std::vector<int64_t> begins = source_->DocumentBegins(first_ + first, length);
    for (int64_t& begin : begins) begin -= first_;
    if (first == 0 && length > 0 && (begins.empty() || begins[0] > 0)) {
      begins.insert(begins.begin(), 0);
    }
    return begins;
  }
  std::string description() const override {
    return FormatThousands(num_tokens_) + " tokens from " + FormatThousands(first_) + " on of " +
           source_->description();
  }
  std::string PlaceOf(int64_t index) const override { return source_->PlaceOf(first_ + index); }

 private:
  TokenSourcePtr source_;
  int64_t first_, num_tokens_;
};

}  // namespace

void TokenSource::CheckRange(int64_t first, int64_t length) const {
  APOGEE_CHECK(first >= 0 && length >= 0 && first <= num_tokens() - length, "tokens [", first, ", ",
               first, " + ", length, ") are outside of ", description());
}

MemoryTokenSource::MemoryTokenSource(std::vector<int32_t> tokens,
                                     std::vector<int64_t> document_begins, std::string description)
    : tokens_(std::move(tokens)),
      begins_(std::move(document_begins)),
      description_(std::move(description)) {
  if (tokens_.empty() && begins_ == std::vector<int64_t>{0}) begins_.clear();
  const auto last = static_cast<int64_t>(tokens_.size());
  for (size_t i = 0; i < begins_.size(); ++i) {
    const int64_t end = i + 1 < begins_.size() ? begins_[i + 1] : last;
    APOGEE_CHECK(i > 0 || begins_[0] == 0, "MemoryTokenSource: the first document begins at token ",
                 begins_[0], "; it must begin at 0");
    APOGEE_CHECK(end > begins_[i], "MemoryTokenSource: document ", i, " has tokens [", begins_[i],
                 ", ", end, ") of ", last,
                 ": it is empty or begins behind the next; give ascending begins below ", last);
  }
  APOGEE_CHECK(!begins_.empty() || tokens_.empty(),
               "MemoryTokenSource: no document begins; the first begins at 0");
}

MemoryTokenSource::MemoryTokenSource(const std::vector<std::vector<int32_t>>& documents)
    : description_("documents in memory") {
  APOGEE_CHECK(!documents.empty(), "MemoryTokenSource: there are no documents");
  for (size_t i = 0; i < documents.size(); ++i) {
    APOGEE_CHECK(!documents[i].empty(), "MemoryTokenSource: document ", i, " of ", documents.size(),
                 " is empty; leave it out");
    begins_.push_back(num_tokens());
    tokens_.insert(tokens_.end(), documents[i].begin(), documents[i].end());
  }
}

void MemoryTokenSource::Read(int64_t first, std::span<int32_t> tokens) const {
  CheckRange(first, static_cast<int64_t>(tokens.size()));
  std::copy_n(tokens_.begin() + first, tokens.size(), tokens.begin());
}

std::vector<int64_t> MemoryTokenSource::DocumentBegins(int64_t first, int64_t length) const {
  CheckRange(first, length);
  const auto begin = std::ranges::lower_bound(begins_, first);
  return {begin, std::lower_bound(begin, begins_.end(), first + length)};
}

std::string MemoryTokenSource::description() const {
  return description_ + ", " + FormatThousands(num_tokens()) + " tokens";
}

TokenSourcePtr BytesAsTokens(TextSpan text) {
  return std::make_shared<ByteTokens>(std::move(text));
}

TokenSourcePtr SliceTokens(TokenSourcePtr source, int64_t first, int64_t num_tokens) {
  const int64_t all = source->num_tokens();
  APOGEE_CHECK(first >= 0 && num_tokens >= 0 && first <= all && num_tokens <= all - first,
               "SliceTokens: ", num_tokens, " tokens from token ", first, " on are not in ",
               source->description());
  return std::make_shared<Slice>(std::move(source), first, num_tokens);
}

}  // namespace apogee::data
