// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/corpus_sources.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "apogee/core/text/text.h"

namespace apogee::data {
namespace {

namespace fs = std::filesystem;

constexpr char kLicenses[] = "/usr/share/common-licenses";
constexpr size_t kReadBytes = 64 << 10;

std::string SizeText(const std::string& bytes) {
  return FormatThousands(static_cast<int64_t>(bytes.size())) + " bytes";
}

// Appends the rest of `stream` to `out`; false on a read error.
bool ReadAll(std::FILE* stream, std::string& out) {
  std::array<char, kReadBytes> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), stream)) {
    out.append(buffer.data(), count);
  }
  return std::ferror(stream) == 0;
}

absl::Status AppendFile(const std::string& path, std::string& out) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr || !ReadAll(file.get(), out)) {
    return InvalidArgument("data: cannot read ", path, ": ", std::strerror(errno),
                           "; give a readable text file");
  }
  return absl::OkStatus();
}

// The regular files below a directory, sorted by name.
absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  auto it = fs::recursive_directory_iterator(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const bool is_link = it->is_symlink(error);
    if (!error && !is_link && it->is_regular_file(error)) files.push_back(it->path().string());
    if (error) break;
  }
  if (error) {
    return InvalidArgument("data: cannot list ", directory, ": ", error.message(),
                           "; give a readable directory of text files");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TextFilesOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return NotFound("data: ", path,
                    " does not exist; give a text file or a directory of text files");
  }
  if (status.type() == fs::file_type::directory) return FilesBelow(path);
  if (status.type() != fs::file_type::regular) {
    return InvalidArgument(
        "data: ", path,
        error ? " cannot be examined: " + error.message() : std::string(" is not a regular file"),
        "; give a readable text file or directory");
  }
  return std::vector<std::string>{path};
}

absl::StatusOr<TextSource> ReadTextFiles(const std::vector<std::string>& paths) {
  if (paths.empty()) return InvalidArgument("data: no path given; give at least one text file");
  TextSource source;
  std::string names;
  size_t num_files = 0;
  for (const std::string& path : paths) {
    APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> files, TextFilesOf(path));
    const size_t before = source.bytes.size();
    for (const std::string& file : files) APOGEE_RETURN_IF_ERROR(AppendFile(file, source.bytes));
    if (source.bytes.size() == before) {
      return InvalidArgument("data: ", path, files.empty() ? " holds no regular file" : " is empty",
                             "; give a text file or a directory of text files");
    }
    num_files += files.size();
    names += (names.empty() ? "" : ", ") + path;
  }
  source.description = names + (num_files > 1 ? " (" + std::to_string(num_files) + " files)" : "") +
                       ", " + SizeText(source.bytes);
  return source;
}

absl::StatusOr<TextSource> ReadKingJamesBible() {
  const absl::Status missing = NotFound(
      "data: the King James text was not found: the program `bible` printed none; install it with "
      "`apt-get install bible-kjv`, or give text files of your own");
  std::FILE* pipe = popen("bible -f gen1:1-rev22:21 2>/dev/null </dev/null", "r");
  if (pipe == nullptr) return missing;
  std::string printed;
  const bool complete = ReadAll(pipe, printed);
  if (pclose(pipe) != 0 || !complete || printed.empty()) return missing;

  // One verse per line; each begins with its reference ("Gen1:1 "), which is not prose.
  TextSource source;
  source.bytes.reserve(printed.size());
  for (size_t begin = 0; begin < printed.size();) {
    const size_t newline = std::min(printed.find('\n', begin), printed.size() - 1);
    const size_t space = printed.find(' ', begin);
    const size_t text = space < newline ? space + 1 : begin;
    source.bytes.append(printed, text, newline + 1 - text);
    begin = newline + 1;
  }
  source.description = "King James Bible (bible-kjv), " + SizeText(source.bytes);
  return source;
}

absl::StatusOr<TextSource> ReadDefaultText() {
  absl::StatusOr<TextSource> bible = ReadKingJamesBible();
  if (bible.ok()) return bible;
  absl::StatusOr<TextSource> licenses = ReadTextFiles({kLicenses});
  if (!licenses.ok()) return bible.status();  // its message says what to install
  licenses->notice =
      "the King James text is not installed, so the model learns the licence texts of " +
      std::string(kLicenses) + "; `apt-get install bible-kjv` gives it real prose";
  return licenses;
}

}  // namespace apogee::data
