// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/load_tokenizer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "apogee/data/tokenizer/byte_tokenizer.h"
#include "apogee/data/tokenizer/formats/sentence_piece.h"
#include "apogee/data/tokenizer/formats/tiktoken.h"
#include "apogee/data/tokenizer/formats/tokenizer_json.h"

namespace apogee::data {
namespace {

// The largest files that people use have 35 MB.
constexpr int64_t kMaxFileBytes = int64_t{96} << 20;

// The first field of a SentencePiece model: a list of pieces, in the coding of protocol buffers.
constexpr char kPiecesTag = 0x0A;

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path) {
  struct Closer {
    ~Closer() {
      if (fd >= 0) close(fd);
    }
    int fd;
  };
  const Closer file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    if (errno == ENOENT) {
      return NotFound("tokenizer: ", path, " does not exist; give a file or 'byte'");
    }
    return InvalidArgument("tokenizer: cannot open ", path, ": ", std::strerror(errno));
  }
  struct stat info {};
  if (fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument("tokenizer: ", path, " is not a regular file; give a file or 'byte'");
  }
  if (info.st_size > kMaxFileBytes) {
    return InvalidArgument("tokenizer: ", path, " has ", static_cast<int64_t>(info.st_size),
                           " bytes; a tokenizer has at most ", kMaxFileBytes);
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t count =
        pread(file.fd, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return InvalidArgument("tokenizer: cannot read ", path, ": ", std::strerror(errno));
    }
    if (count == 0) {
      return InvalidArgument("tokenizer: ", path, " became shorter while it was read");
    }
    at += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace

absl::StatusOr<TokenizerPtr> LoadTokenizer(const std::string& path) {
  if (path == "byte") return std::make_shared<const ByteTokenizer>();
  APOGEE_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerFile(path));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') return ParseTokenizerJson(text, path);
  if (LooksLikeTiktoken(text)) return ParseTiktoken(text, path, {});
  if (!text.empty() && text[0] == kPiecesTag) return ParseSentencePiece(text, path);
  return InvalidArgument("tokenizer: ", path,
                         " is no tokenizer: expected a tokenizer.json, ranks of tiktoken or a "
                         "SentencePiece model");
}

absl::StatusOr<TokenizerPtr> LoadTiktoken(const std::string& path, const TiktokenOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerFile(path));
  return ParseTiktoken(text, path, options);
}

}  // namespace apogee::data
