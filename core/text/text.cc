// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/text.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apogee/core/text/utf8.h"

namespace apogee {
namespace {

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(const std::string& name, const std::vector<std::string>& candidates) {
  std::string nearest;
  // Among equally near candidates, one of equal length wins: a wrong letter is likelier than a
  // missing one.
  size_t best = name.size() / 2 * 2 + 2;
  for (const std::string& candidate : candidates) {
    const size_t distance =
        2 * EditDistance(name, candidate) + (candidate.size() == name.size() ? 0 : 1);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string UnknownName(const std::string& what, const std::string& name,
                        const std::vector<std::string>& candidates) {
  std::string text = "unknown " + what + " \"" + name + "\"";
  const std::string nearest = NearestName(name, candidates);
  if (!nearest.empty()) text += " (did you mean \"" + nearest + "\"?)";
  return text + "; known: " + JoinTexts(candidates, ", ");
}

std::string JoinTexts(const std::vector<std::string>& texts, const char* separator) {
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) all += (i > 0 ? separator : "") + texts[i];
  return all;
}

bool GlobMatches(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string FormatChange(double share, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%+.*f %%", decimals, 100 * share);
  return text;
}

std::string FormatPercent(double share, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f %%", decimals, 100 * share);
  return text;
}

std::string FormatSeconds(double seconds) {
  struct Unit {
    const char* name;
    double seconds, below;
  };
  static constexpr Unit kUnits[] = {
      {"us", 1e-6, 1e-3}, {"ms", 1e-3, 1},          {"s", 1, 120},
      {"min", 60, 7200},  {"h", 3600, 48 * 3600.0}, {"days", 86400, INFINITY}};
  const Unit& unit =
      *std::ranges::find_if(kUnits, [&](const Unit& u) { return !(seconds >= u.below); });
  const double value = seconds / unit.seconds;
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f %s",
                value < 9.995   ? 2
                : value < 99.95 ? 1
                                : 0,
                value, unit.name);
  return text;
}

std::string FormatThousands(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string JsonQuoted(const std::string& text) {
  const bool utf8 = IsUtf8(text);
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(byte));
      quoted += escape;
    } else {
      quoted += byte < 0x80 || utf8 ? c : '?';
    }
  }
  return quoted + '"';
}

}  // namespace apogee
