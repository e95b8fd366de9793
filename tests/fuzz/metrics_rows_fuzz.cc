// SPDX-License-Identifier: Apache-2.0

// libFuzzer: metrics.jsonl of a run, from anybody.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "apogee/report/files/metrics_rows.h"

namespace {

using apogee::report::MetricsRow;
using apogee::report::MetricsRows;

class TextFile final : public apogee::checkpoint::ReadableFile {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(text_.size()); }
  absl::Status Read(int64_t offset, std::span<std::byte> to) const override {
    if (offset < 0 || static_cast<size_t>(offset) + to.size() > text_.size()) __builtin_trap();
    std::memcpy(to.data(), text_.data() + offset, to.size());
    return absl::OkStatus();
  }

 private:
  std::string path_ = "fuzz", text_;
};

MetricsRows Rows(const std::string& text) { return MetricsRows(std::make_unique<TextFile>(text)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MetricsRows rows = Rows({reinterpret_cast<const char*>(data), size});
  int64_t last = -1;
  while (true) {
    const auto row = rows.Next();
    if (!row.ok() || !*row) return 0;
    if ((*row)->step <= last) __builtin_trap();
    last = (*row)->step;
    // What is printed of a row says what it holds.
    std::string text = "{\"step\":" + std::to_string(last);
    for (size_t i = 0; i < (*row)->values.size(); ++i) {
      if (!(*row)->values[i]) continue;
      text += std::string(",\"") + apogee::report::kMetricsFields[i] +
              "\":" + apogee::report::FormatValue((*row)->values[i]);
    }
    MetricsRows again = Rows(text + "}\n");
    const auto same = again.Next();
    if (!same.ok() || !*same || (*same)->step != last) __builtin_trap();
    for (size_t i = 0; i < (*row)->values.size(); ++i) {
      if (!apogee::report::SameValue((*row)->values[i], (**same).values[i])) __builtin_trap();
    }
  }
}
