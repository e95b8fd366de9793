// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/redact.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <regex>

namespace apogee::tools::doctor {
namespace {

bool IsWord(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Replaces `word` unless it is a part of a longer word.
std::string ReplaceWord(std::string text, const std::string& word, const std::string& by) {
  if (word.empty()) return text;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
    const size_t end = at + word.size();
    const bool whole =
        (at == 0 || !IsWord(text[at - 1])) && (end == text.size() || !IsWord(text[end]));
    if (whole) text.replace(at, word.size(), by);
    at += whole ? by.size() : word.size();
  }
  return text;
}

}  // namespace

Redactor::Redactor(std::string home, std::string user, std::string host)
    : home_(std::move(home)), user_(std::move(user)), host_(std::move(host)) {
  while (!home_.empty() && home_.back() == '/') home_.pop_back();
  if (user_ == "root") user_.clear();
}

Redactor Redactor::OfThisProcess() {
  const char* home = std::getenv("HOME");
  std::array<char, 256> host = {};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const passwd* user = getpwuid(getuid());
  return {home == nullptr ? "" : home, user == nullptr ? "" : user->pw_name, host.data()};
}

std::string Redactor::Clean(const std::string& text) const {
  static const std::regex kPassword("://[^/@ ]+@"), kAddress("\\b[0-9]{1,3}(\\.[0-9]{1,3}){3}\\b"),
      kLongAddress(
          "\\b[0-9a-fA-F]{1,4}(::?[0-9a-fA-F]{1,4}){3,}\\b|\\b[0-9a-fA-F]{1,4}::[0-9a-fA-"
          "F:]+");
  std::string clean = ReplaceWord(text, home_, "~");
  clean = ReplaceWord(clean, host_, "<host>");
  clean = ReplaceWord(clean, user_, "<user>");
  clean = std::regex_replace(clean, kPassword, "://<password>@");
  clean = std::regex_replace(clean, kAddress, "<address>");
  clean = std::regex_replace(clean, kLongAddress, "<address>");
  for (char& c : clean) {
    if (c < ' ' || c > '~') c = '?';
  }
  return clean;
}

}  // namespace apogee::tools::doctor
