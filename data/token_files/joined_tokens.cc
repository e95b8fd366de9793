// SPDX-License-Identifier: Apache-2.0

// Several token files, one behind the other, as one source.
#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/data/token_files/stored_tokens.h"

namespace apogee::data {
namespace {

class JoinedTokens : public StoredTokens {
 public:
  explicit JoinedTokens(std::vector<StoredTokensPtr> files) : files_(std::move(files)) {
    for (const StoredTokensPtr& file : files_) {
      starts_.push_back(num_tokens_);
      num_tokens_ += file->num_tokens();
    }
  }

  int64_t num_tokens() const override { return num_tokens_; }
  void Read(int64_t first, std::span<int32_t> tokens) const override {
    ForEachPart(first, static_cast<int64_t>(tokens.size()), [&](const Part& part) {
      part.file->Read(part.first, tokens.subspan(static_cast<size_t>(part.done),
                                                 static_cast<size_t>(part.length)));
    });
  }
  void ReadStored(int64_t first, std::span<int64_t> ids) const override {
    ForEachPart(first, static_cast<int64_t>(ids.size()), [&](const Part& part) {
      part.file->ReadStored(part.first, ids.subspan(static_cast<size_t>(part.done),
                                                    static_cast<size_t>(part.length)));
    });
  }
  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override {
    std::vector<int64_t> begins;
    ForEachPart(first, length, [&](const Part& part) {
      for (const int64_t begin : part.file->DocumentBegins(part.first, part.length)) {
        begins.push_back(begin - part.first + first + part.done);
      }
    });
    return begins;
  }
  std::string description() const override {
    return internal::Concat(files_.front()->Facts()[0].path, " and ", files_.size() - 1,
                            " more files, ", FormatThousands(num_tokens_), " tokens");
  }
  std::string PlaceOf(int64_t index) const override {
    const size_t file = FileOf(index);
    return files_[file]->PlaceOf(index - starts_[file]);
  }
  std::vector<TokenFileFacts> Facts() const override {
    std::vector<TokenFileFacts> facts;
    for (const StoredTokensPtr& file : files_) facts.push_back(file->Facts()[0]);
    return facts;
  }

 private:
  struct Part {
    const StoredTokens* file;
    int64_t first, length;  // in the file
    int64_t done;           // tokens of the range in the files before
  };
  // The last file that begins at or before a position: files without tokens are passed over.
  size_t FileOf(int64_t position) const {
    return static_cast<size_t>(std::ranges::upper_bound(starts_, position) - starts_.begin()) - 1;
  }
  template <typename Fn>
  void ForEachPart(int64_t first, int64_t length, const Fn& fn) const {
    CheckRange(first, length);
    for (int64_t done = 0; done < length;) {
      const size_t file = FileOf(first + done);
      const int64_t inside = first + done - starts_[file];
      const int64_t part = std::min(length - done, files_[file]->num_tokens() - inside);
      fn(Part{files_[file].get(), inside, part, done});
      done += part;
    }
  }

  std::vector<StoredTokensPtr> files_;
  std::vector<int64_t> starts_;
  int64_t num_tokens_ = 0;
};

}  // namespace

absl::StatusOr<StoredTokensPtr> JoinTokens(std::vector<StoredTokensPtr> files) {
  if (files.size() == 1) return files[0];
  const TokenFileFacts first = files[0]->Facts()[0];
  for (const StoredTokensPtr& file : files) {
    const TokenFileFacts facts = file->Facts()[0];
    if (facts.format != first.format || facts.type != first.type) {
      return InvalidArgument(facts.path, ": is ", Name(facts.format), " (", Name(facts.type),
                             "), but ", first.path, " is ", Name(first.format), " (",
                             Name(first.type), "); the files of one source have one format");
    }
  }
  return std::make_shared<JoinedTokens>(std::move(files));
}

}  // namespace apogee::data
