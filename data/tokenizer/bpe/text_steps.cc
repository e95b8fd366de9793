// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/bpe/text_steps.h"

#include <charconv>
#include <utility>

#include "apogee/core/text/utf8.h"
#include "apogee/data/tokenizer/unicode/code_points.h"

namespace apogee::data {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

void ReplaceAll(std::string_view text, const std::string& from, const std::string& to,
                std::string& result) {
  result.clear();
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size()) {
    result.append(text, at, found - at);
    result += to;
  }
  result.append(text, at);
}

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += text;
  return joined;
}

// A run that is no UTF-8 gives one U+FFFD per byte.
std::vector<std::string> DecodeFallback(const std::vector<std::string>& texts) {
  std::vector<std::string> decoded;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (IsUtf8(bytes)) {
      decoded.push_back(bytes);
    } else {
      decoded.insert(decoded.end(), bytes.size(), kReplacement);
    }
    bytes.clear();
  };
  for (const std::string& text : texts) {
    if (const int byte = ByteOfFallback(text); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      decoded.push_back(text);
    }
  }
  flush();
  return decoded;
}

std::string_view Stripped(std::string_view text, const DecoderStep& step) {
  for (int64_t i = 0; i < step.start && text.starts_with(step.from); ++i) {
    text.remove_prefix(step.from.size());
  }
  for (int64_t i = 0; i < step.stop && text.ends_with(step.from); ++i) {
    text.remove_suffix(step.from.size());
  }
  return text;
}

}  // namespace

std::string_view Normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                           std::array<std::string, 2>& copy, bool skip_prepend) {
  size_t free = 0;  // the copy that does not hold the text
  for (const NormalizerStep& step : steps) {
    std::string& result = copy[free];
    std::string_view before = text;
    switch (step.kind) {
      case NormalizerKind::kNfc:
        text = CodePointClasses::Get()->Nfc(text, result);
        break;
      case NormalizerKind::kPrepend:
        if (text.empty() || skip_prepend) continue;
        result = step.to;
        result += text;
        text = result;
        break;
      case NormalizerKind::kReplace:
        ReplaceAll(text, step.from, step.to, result);
        text = result;
        break;
    }
    if (text.data() != before.data()) free = 1 - free;
  }
  return text;
}

int ByteOfFallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  unsigned byte = 0;
  const char* end = token.data() + 5;
  const auto [rest, error] = std::from_chars(token.data() + 3, end, byte, 16);
  return error == std::errc() && rest == end ? static_cast<int>(byte) : -1;
}

std::string DecodeTexts(const std::vector<DecoderStep>& steps, std::vector<std::string> texts) {
  for (const DecoderStep& step : steps) {
    switch (step.kind) {
      case DecoderKind::kByteLevel: {
        std::string copy;
        const std::string joined = Joined(texts);
        texts = {std::string(ReadableUtf8(joined, copy))};
        break;
      }
      case DecoderKind::kReplace:
        for (std::string& text : texts) {
          std::string replaced;
          ReplaceAll(text, step.from, step.to, replaced);
          text = std::move(replaced);
        }
        break;
      case DecoderKind::kByteFallback:
        texts = DecodeFallback(texts);
        break;
      case DecoderKind::kFuse:
        texts = {Joined(texts)};
        break;
      case DecoderKind::kStrip:
        for (std::string& text : texts) text = std::string(Stripped(text, step));
        break;
    }
  }
  return Joined(texts);
}

}  // namespace apogee::data
