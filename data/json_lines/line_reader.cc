// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/json_lines/line_reader.h"

#include <algorithm>
#include <span>

#include "apogee/core/text/text.h"

namespace apogee::data {

absl::StatusOr<bool> LineReader::Next(std::string& line) {
  constexpr int64_t kReadBytes = int64_t{1} << 20;
  size_t searched = at_;  // there is no line end between `at_` and here
  while (true) {
    const size_t end = buffer_.find('\n', searched);
    const bool is_rest = end == std::string::npos && read_ == file_.size();
    if (end != std::string::npos || is_rest) {
      const size_t stop = std::min(end, buffer_.size());
      if (is_rest && stop == at_) return false;
      ++number_;
      if (static_cast<int64_t>(stop - at_) > max_line_bytes_) break;
      line.assign(buffer_, at_, stop - at_);
      at_ = std::min(stop + 1, buffer_.size());
      return true;
    }
    if (static_cast<int64_t>(buffer_.size() - at_) > max_line_bytes_) {
      ++number_;
      break;
    }
    buffer_.erase(0, at_);
    at_ = 0;
    searched = buffer_.size();
    const int64_t bytes = std::min(kReadBytes, file_.size() - read_);
    buffer_.resize(searched + static_cast<size_t>(bytes));
    APOGEE_RETURN_IF_ERROR(
        file_.Read(read_, std::as_writable_bytes(std::span(buffer_).subspan(searched))));
    read_ += bytes;
  }
  return absl::ResourceExhaustedError(
      internal::Concat(file_.path(), ": line ", number_, ": is longer than ",
                       FormatBytes(max_line_bytes_), ", the most that a line may have; divide it"));
}

}  // namespace apogee::data
