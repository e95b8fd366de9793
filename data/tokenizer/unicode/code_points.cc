// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/unicode/code_points.h"

#include <algorithm>

#include "apogee/core/error.h"
#include "apogee/core/text/utf8.h"

#if APOGEE_HAS_UTF8PROC
#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <memory>
#endif

namespace apogee::data {

#if APOGEE_HAS_UTF8PROC
namespace {

constexpr uint32_t kNumCodePoints = 0x110000;

bool InRange(uint32_t code, uint32_t first, uint32_t last) { return code >= first && code <= last; }

struct Range {
  uint32_t first, last;
};

// What Unicode 15.1 and 16 added, which Debian's libutf8proc (Unicode 15) does not have. Hugging
// Face's library does, and random bytes contain such characters.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewDigits[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                {0x1E5F1, 0x1E5FA}};

// Marks that Unicode 10 to 15 added, and the pair that composes to U+11938.
constexpr Range kNewMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x11930, 0x11930}, {0x11935, 0x11935}};

uint8_t GeneralClasses(uint32_t code, utf8proc_category_t category) {
  using Classes = CodePointClasses;
  uint8_t classes = 0;
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      classes = Classes::kLetter | Classes::kWord;
      break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      classes = Classes::kNumber | Classes::kWord;
      break;
    case UTF8PROC_CATEGORY_NO:
      classes = Classes::kNumber;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      classes = Classes::kWord;
      break;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      classes = Classes::kSpace;
      break;
    default:
      break;
  }
  if (InRange(code, 0x9, 0xD) || code == 0x85) classes |= Classes::kSpace;
  // Join_Control, and the symbols with Other_Alphabetic.
  if (code == 0x200C || code == 0x200D || InRange(code, 0x24B6, 0x24E9) ||
      InRange(code, 0x1F130, 0x1F149) || InRange(code, 0x1F150, 0x1F169) ||
      InRange(code, 0x1F170, 0x1F189)) {
    classes |= Classes::kWord;
  }
  return classes;
}

std::string Compose(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  APOGEE_CHECK(size >= 0, "NFC: ", utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(composed, &std::free);
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(size)};
}

}  // namespace

const CodePointClasses* CodePointClasses::Get() {
  static const CodePointClasses classes;
  return &classes;
}

CodePointClasses::CodePointClasses() {
  std::vector<uint8_t> all(kNumCodePoints);
  std::vector<uint32_t> seconds;  // the code points that a composition may take to a starter
  std::string text;
  for (uint32_t code = 0; code < kNumCodePoints; ++code) {
    const utf8proc_property_t* property =
        utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    all[code] = GeneralClasses(code, static_cast<utf8proc_category_t>(property->category));
    if (property->combining_class != 0) continue;
    bool is_start = true;
    if (property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0) {
      constexpr auto kDecompose =
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
      std::array<utf8proc_int32_t, 8> parts;
      int last_class = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(code), parts.data(), parts.size(), kDecompose, &last_class);
      text.clear();
      AppendUtf8(code, text);
      is_start = Compose(text) == text;
      if (is_start && count > 1) {
        seconds.push_back(static_cast<uint32_t>(parts[static_cast<size_t>(count) - 1]));
      }
    }
    if (is_start) all[code] |= kNfcStart;
  }
  const auto add = [&all](Range range, uint8_t classes) {
    for (uint32_t code = range.first; code <= range.last; ++code) all[code] |= classes;
  };
  for (const Range& range : kNewLetters) add(range, kLetter | kWord);
  for (const Range& range : kNewDigits) add(range, kNumber | kWord);
  // The vowels and final consonants of Hangul compose by arithmetic.
  for (uint32_t code = 0x1161; code <= 0x1175; ++code) seconds.push_back(code);
  for (uint32_t code = 0x11A8; code <= 0x11C2; ++code) seconds.push_back(code);
  for (const uint32_t code : seconds) all[code] &= static_cast<uint8_t>(~kNfcStart);
  for (const Range& range : kNewMarks) add(range, kNfcStart | kNfcFixed);

  std::copy_n(all.begin(), ascii_.size(), ascii_.begin());
  std::map<Page, uint16_t> index_of;
  for (uint32_t number = 0; number < page_of_.size(); ++number) {
    Page page;
    std::copy_n(all.begin() + number * 256, page.size(), page.begin());
    const auto [it, is_new] = index_of.emplace(page, static_cast<uint16_t>(pages_.size()));
    if (is_new) pages_.push_back(page);
    page_of_[number] = it->second;
  }
}

std::string_view CodePointClasses::Nfc(std::string_view text, std::string& copy) const {
  bool copied = false;
  size_t done = 0;   // what is before is in `copy`, once something was copied
  size_t start = 0;  // of the unit that is being read
  size_t at = 0;
  while (at < text.size()) {
    const size_t here = at;
    const uint8_t classes = Of(ReadCodePoint(text, at));
    if ((classes & kNfcStart) != 0) {
      start = (classes & kNfcFixed) != 0 ? at : here;
      continue;
    }
    // The unit lasts until the next start.
    size_t end = at;
    while (end < text.size()) {
      size_t next = end;
      if ((Of(ReadCodePoint(text, next)) & kNfcStart) != 0) break;
      end = next;
    }
    const std::string_view unit = text.substr(start, end - start);
    const std::string composed = Compose(unit);
    if (composed != unit) {
      if (!copied) copy.clear();
      copied = true;
      copy.append(text, done, start - done);
      copy += composed;
      done = end;
    }
    start = at = end;
  }
  if (!copied) return text;
  copy.append(text, done);
  return copy;
}

#else

const CodePointClasses* CodePointClasses::Get() { return nullptr; }

std::string_view CodePointClasses::Nfc(std::string_view /*text*/, std::string& /*copy*/) const {
  Throw("NFC: this build has no libutf8proc");
}

#endif

}  // namespace apogee::data
