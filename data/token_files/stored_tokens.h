// SPDX-License-Identifier: Apache-2.0

// StoredTokens: a token file as the tools see it: the stored ids and the file's own facts.
//
//   APOGEE_ASSIGN_OR_RETURN(StoredTokensPtr tokens, OpenStoredTokens({"a.bin", "b.bin"}, options));
//   std::vector<int64_t> ids(100);
//   tokens->ReadStored(/*first=*/0, ids);      // also ids that no int32 holds
#ifndef APOGEE_DATA_TOKEN_FILES_STORED_TOKENS_H_
#define APOGEE_DATA_TOKEN_FILES_STORED_TOKENS_H_

#include <optional>

#include "apogee/data/token_files/token_bytes.h"
#include "apogee/data/token_files/token_file.h"

namespace apogee::data {

// One file or pair, as it was opened.
struct TokenFileFacts {
  std::string path;
  TokenFormat format;
  TokenType type;
  std::optional<int64_t> num_documents;  // if the file says it
};

class StoredTokens : public TokenSource {
 public:
  // As Read, but the ids as they are in the file.
  virtual void ReadStored(int64_t first, std::span<int64_t> ids) const = 0;
  virtual std::vector<TokenFileFacts> Facts() const = 0;
};
using StoredTokensPtr = std::shared_ptr<const StoredTokens>;

// OpenTokenFiles is this.
absl::StatusOr<StoredTokensPtr> OpenStoredTokens(const std::vector<std::string>& paths,
                                                 const TokenFileOptions& options);

absl::StatusOr<StoredTokensPtr> OpenLlmc(const std::string& path, const TokenFileOptions& options);
absl::StatusOr<StoredTokensPtr> OpenRaw(const std::string& path, TokenFormat format,
                                        const TokenFileOptions& options);
// `path` names either file of the pair.
absl::StatusOr<StoredTokensPtr> OpenMegatron(const std::string& path,
                                             const TokenFileOptions& options);
// The files behind one another; at least one. InvalidArgument if formats or types differ.
absl::StatusOr<StoredTokensPtr> JoinTokens(std::vector<StoredTokensPtr> files);

// NAME.idx and NAME.bin of a pair, from the name of either. InvalidArgument for another name.
struct MegatronPaths {
  std::string idx, bin;
};
absl::StatusOr<MegatronPaths> MegatronPathsOf(const std::string& path);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_STORED_TOKENS_H_
