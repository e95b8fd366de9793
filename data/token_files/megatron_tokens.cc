// SPDX-License-Identifier: Apache-2.0

// Megatron pairs as token sources.
#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/data/token_files/megatron_index.h"
#include "apogee/data/token_files/stored_tokens.h"

namespace apogee::data {
namespace {

class MegatronTokens : public StoredTokens {
 public:
  MegatronTokens(MegatronIndex index, TokenBytes bytes, const TokenFileOptions& options)
      : index_(std::move(index)),
        bytes_(std::move(bytes)),
        limit_(options.vocab_size == 0 ? kIdLimit : options.vocab_size) {}

  int64_t num_tokens() const override { return index_.num_tokens(); }

  void Read(int64_t first, std::span<int32_t> tokens) const override {
    ForEachRun(first, tokens, [this](int64_t byte, std::span<int32_t> ids, int64_t token) {
      return bytes_.ReadIds(byte, ids, limit_, token);
    });
  }
  void ReadStored(int64_t first, std::span<int64_t> ids) const override {
    ForEachRun(first, ids, [this](int64_t byte, std::span<int64_t> run, int64_t /*token*/) {
      return bytes_.ReadStored(byte, run);
    });
  }
  std::vector<int64_t> DocumentBegins(int64_t first, int64_t length) const override {
    CheckRange(first, length);
    if (length == 0) return {};
    return ValueOrThrow(index_.DocumentBegins(first, length));
  }
  std::string description() const override {
    return internal::Concat(bytes_.path(), ": megatron (", Name(bytes_.type()), "), ",
                            FormatThousands(num_tokens()), " tokens");
  }
  std::string PlaceOf(int64_t index) const override {
    return internal::Concat(bytes_.path(), ": token ", index);
  }
  std::vector<TokenFileFacts> Facts() const override {
    return {{bytes_.path(), TokenFormat::kMegatron, bytes_.type(), index_.num_documents()}};
  }

 private:
  template <typename T, typename Fn>
  void ForEachRun(int64_t first, std::span<T> ids, const Fn& read) const {
    CheckRange(first, static_cast<int64_t>(ids.size()));
    while (!ids.empty()) {
      const MegatronIndex::Run run =
          ValueOrThrow(index_.RunAt(first, static_cast<int64_t>(ids.size())));
      const auto count = static_cast<size_t>(run.num_tokens);
      OkOrThrow(read(run.byte, ids.first(count), first));
      ids = ids.subspan(count);
      first += run.num_tokens;
    }
  }

  MegatronIndex index_;
  TokenBytes bytes_;
  int64_t limit_;
};

}  // namespace

absl::StatusOr<MegatronPaths> MegatronPathsOf(const std::string& path) {
  if (!path.ends_with(".idx") && !path.ends_with(".bin")) {
    return InvalidArgument(path, ": a Megatron pair is NAME.idx and NAME.bin; name one of them");
  }
  const std::string stem = path.substr(0, path.size() - 4);
  return MegatronPaths{stem + ".idx", stem + ".bin"};
}

absl::StatusOr<StoredTokensPtr> OpenMegatron(const std::string& path,
                                             const TokenFileOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const MegatronPaths paths, MegatronPathsOf(path));
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<RandomBytes> idx, OpenBytes(paths.idx));
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<RandomBytes> bin, OpenBytes(paths.bin));
  APOGEE_ASSIGN_OR_RETURN(MegatronIndex index,
                          MegatronIndex::Read(std::move(idx), paths.bin, bin->size()));
  const TokenType type = index.type();
  return std::make_shared<MegatronTokens>(std::move(index), TokenBytes(std::move(bin), type),
                                          options);
}

}  // namespace apogee::data
