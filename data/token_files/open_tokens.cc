// SPDX-License-Identifier: Apache-2.0

// Finds files and recognises their format.
#include <glob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "apogee/data/token_files/llmc_header.h"
#include "apogee/data/token_files/megatron_index.h"
#include "apogee/data/token_files/stored_tokens.h"

namespace apogee::data {
namespace {

// The files that a path or pattern names. A file whose name looks like a pattern is that file.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (path.find_first_of("*?[") == std::string::npos || std::filesystem::exists(path, error)) {
    return std::vector<std::string>{path};
  }
  glob_t found{};
  const int failed = glob(path.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (failed == GLOB_NOMATCH) return NotFound(path, ": no file matches this pattern");
  if (failed != 0) return DataLoss(path, ": a folder of this pattern cannot be read");
  // In the order of bytes: that of glob() depends on the locale.
  std::ranges::sort(files);
  // Of a Megatron pair the pattern may match both files.
  std::erase_if(files, [all = files](const std::string& file) {
    return file.ends_with(".bin") &&
           std::ranges::binary_search(all, file.substr(0, file.size() - 4) + ".idx");
  });
  return files;
}

absl::StatusOr<TokenFormat> Recognise(const std::string& path) {
  if (path.ends_with(".idx")) return TokenFormat::kMegatron;
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<RandomBytes> file, OpenBytes(path));
  std::array<std::byte, 4> magic;
  if (file->size() >= static_cast<int64_t>(magic.size())) {
    APOGEE_RETURN_IF_ERROR(file->Read(0, magic));
    if (IsLlmcMagic(Load<uint32_t>(magic.data()))) return TokenFormat::kLlmc;
  }
  std::error_code error;
  if (path.ends_with(".bin") &&
      std::filesystem::exists(path.substr(0, path.size() - 4) + ".idx", error)) {
    return TokenFormat::kMegatron;
  }
  return InvalidArgument(path,
                         ": begins with no magic of llm.c, and no .idx of Megatron is beside it; "
                         "if it has only ids, say which: raw_u16 or raw_u32");
}

absl::StatusOr<StoredTokensPtr> OpenOne(const std::string& path, const TokenFileOptions& options) {
  TokenFormat format;
  if (options.format.has_value()) {
    format = *options.format;
  } else {
    APOGEE_ASSIGN_OR_RETURN(format, Recognise(path));
  }
  switch (format) {
    case TokenFormat::kLlmc:
      return OpenLlmc(path, options);
    case TokenFormat::kMegatron:
      return OpenMegatron(path, options);
    default:
      return OpenRaw(path, format, options);
  }
}

}  // namespace

absl::StatusOr<StoredTokensPtr> OpenStoredTokens(const std::vector<std::string>& paths,
                                                 const TokenFileOptions& options) {
  if (options.vocab_size < 0 || options.vocab_size > kIdLimit) {
    return InvalidArgument("vocab_size is ", options.vocab_size, ", it must be in [0, ", kIdLimit,
                           "]; 0: unchecked");
  }
  if (paths.empty()) return InvalidArgument("no token file was named; name at least one");
  std::vector<StoredTokensPtr> files;
  for (const std::string& path : paths) {
    APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> found, FilesOf(path));
    for (const std::string& file : found) {
      APOGEE_ASSIGN_OR_RETURN(StoredTokensPtr tokens, OpenOne(file, options));
      files.push_back(std::move(tokens));
    }
  }
  return JoinTokens(std::move(files));
}

absl::StatusOr<TokenSourcePtr> OpenTokenFiles(const std::vector<std::string>& paths,
                                              const TokenFileOptions& options) {
  return OpenStoredTokens(paths, options);
}

absl::StatusOr<TokenSourcePtr> OpenTokenFile(const std::string& path,
                                             const TokenFileOptions& options) {
  return OpenTokenFiles({path}, options);
}

absl::Status CheckTokenIds(const TokenSource& source, int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kIdLimit) {
    return InvalidArgument("vocab_size is ", vocab_size, ", it must be in [1, ", kIdLimit, "]");
  }
  std::vector<int32_t> ids(size_t{1} << 16);
  for (int64_t first = 0; first < source.num_tokens();) {
    const auto count = std::min(static_cast<int64_t>(ids.size()), source.num_tokens() - first);
    const std::span<int32_t> piece = std::span(ids).first(static_cast<size_t>(count));
    try {
      source.Read(first, piece);
    } catch (const Error& error) {
      return absl::DataLossError(error.what());
    }
    const auto bad = std::ranges::find_if(
        piece, [vocab_size](int32_t id) { return id < 0 || id >= vocab_size; });
    if (bad != piece.end()) {
      return IdOutOfRange(source.PlaceOf(first + (bad - piece.begin())), *bad, vocab_size);
    }
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace apogee::data
