// SPDX-License-Identifier: Apache-2.0

// LineReader: the lines of a file of any size, one at a time.
//
//   LineReader reader(*file, /*max_line_bytes=*/int64_t{64} << 20);
//   std::string line;
//   while (true) {
//     APOGEE_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
//     if (!more) break;
//     ...                                                      // reader.number(): 1, 2, ...
//   }
#ifndef APOGEE_DATA_JSON_LINES_LINE_READER_H_
#define APOGEE_DATA_JSON_LINES_LINE_READER_H_

#include <cstdint>
#include <string>

#include "apogee/core/status.h"
#include "apogee/data/token_files/token_bytes.h"

namespace apogee::data {

class LineReader {
 public:
  // The file must outlive it.
  LineReader(const RandomBytes& file, int64_t max_line_bytes)
      : file_(file), max_line_bytes_(max_line_bytes) {}
  // The next line, without its end; false behind the last one. ResourceExhausted for a line of more
  // bytes, DataLoss if the file has become shorter.
  absl::StatusOr<bool> Next(std::string& line);
  // Of the line that Next gave last.
  int64_t number() const { return number_; }

 private:
  const RandomBytes& file_;
  int64_t max_line_bytes_;
  int64_t read_ = 0, number_ = 0;
  std::string buffer_;  // bytes of the file up to `read_`, from `at_` on not yet given
  size_t at_ = 0;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_JSON_LINES_LINE_READER_H_
