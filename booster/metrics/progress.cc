// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

#include "apogee/core/text/text.h"

namespace apogee {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);

template <typename... Args>
std::string Printf(const char* format, Args... args) {
  char text[256];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

size_t TerminalWidth(std::FILE* stream) {
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string FormatDuration(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (total >= 3600) {
    return Printf("%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  }
  return Printf("%lld:%02lld", total / 60, total % 60);
}

std::string FormatMemory(const MemoryLedger& ledger) {
  static constexpr const char* kShort[kNumMemoryCategories] = {"param", "grad", "optim", "act",
                                                               "comm",  "work", "ckpt"};
  std::string parts;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const int64_t bytes = ledger.peak_bytes(static_cast<MemoryCategory>(i));
    if (bytes == 0) continue;
    parts += (parts.empty() ? "" : ", ") +
             Printf("%s %.1f", kShort[i], static_cast<double>(bytes) / (1 << 20));
  }
  return Printf("%.1f MiB", static_cast<double>(ledger.peak_total_bytes()) / (1 << 20)) +
         (parts.empty() ? "" : " (" + parts + ")");
}

std::string FormatProgress(const Progress& progress) {
  const int digits = static_cast<int>(std::to_string(progress.total_steps).size());
  std::string text =
      Printf("step %*lld/%lld  loss %.4f  lr %.2e", digits, static_cast<long long>(progress.step),
             static_cast<long long>(progress.total_steps), progress.loss, progress.lr);
  if (std::isfinite(progress.grad_norm)) text += Printf("  norm %.2f", progress.grad_norm);
  text += "  " + FormatThousands(std::llround(progress.tokens_per_s)) + " tok/s";
  if (progress.eta_s >= 0) text += "  eta " + FormatDuration(progress.eta_s);
  if (progress.ledger != nullptr) text += "  peak " + FormatMemory(*progress.ledger);
  return text;
}

ProgressConsole::ProgressConsole(std::FILE* stream)
    : stream_(stream), is_terminal_(stream != nullptr && isatty(fileno(stream)) == 1) {}

ProgressConsole::~ProgressConsole() {
  if (has_live_line_) std::fputs("\n", stream_);
}

void ProgressConsole::Live(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || now - last_draw_ < kRedraw) return;
  last_draw_ = now;
  has_live_line_ = true;
  // Leaves one column free: a full line would wrap and could not be redrawn.
  std::fprintf(stream_, "\r%s\x1b[K", text.substr(0, TerminalWidth(stream_) - 1).c_str());
  std::fflush(stream_);
}

void ProgressConsole::Line(const std::string& text) {
  if (stream_ == nullptr) return;
  std::fprintf(stream_, "%s%s\n", has_live_line_ ? "\r\x1b[K" : "", text.c_str());
  std::fflush(stream_);
  has_live_line_ = false;
}

}  // namespace apogee
