// SPDX-License-Identifier: Apache-2.0

// CodePointClasses: the classes of each code point that tokenizers ask for, by Unicode. The facts
// are from libutf8proc. A build without it has none, and refuses the tokenizers that need them.
//
//   const CodePointClasses* classes = CodePointClasses::Get();     // nullptr without libutf8proc
//   if (classes->Of(code) & CodePointClasses::kLetter) ...
//   text = classes->Nfc(text, copy);
#ifndef APOGEE_DATA_TOKENIZER_UNICODE_CODE_POINTS_H_
#define APOGEE_DATA_TOKENIZER_UNICODE_CODE_POINTS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

// Ends the message of an error where CodePointClasses::Get() is nullptr.
inline constexpr char kNeedsUtf8proc[] =
    "this build of Apogee has no libutf8proc; install libutf8proc-dev and build again";

class CodePointClasses {
 public:
  static constexpr uint8_t kLetter = 1;  // \p{L}
  static constexpr uint8_t kNumber = 2;  // \p{N}
  static constexpr uint8_t kSpace = 4;   // \s: White_Space
  static constexpr uint8_t kWord = 8;    // \w of Unicode's technical standard 18
  // In a text of NFC as it stands, and begins a new unit of composition.
  static constexpr uint8_t kNfcStart = 16;
  // Also kNfcStart: the form C neither moves it nor composes it with what follows.
  static constexpr uint8_t kNfcFixed = 32;

  static const CodePointClasses* Get();

  uint8_t Of(uint32_t code) const {
    return code < 128 ? ascii_[code] : pages_[page_of_[code >> 8]][code & 0xFF];
  }
  // The text in the normal form C of Unicode 9, which is that of Hugging Face's library: marks that
  // are newer stay where they are. `text` itself if it is in that form, else `copy`.
  std::string_view Nfc(std::string_view text, std::string& copy) const;

 private:
  CodePointClasses();

  using Page = std::array<uint8_t, 256>;
  std::array<uint8_t, 128> ascii_;
  std::array<uint16_t, 0x1100> page_of_;
  std::vector<Page> pages_;  // the different ones
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_UNICODE_CODE_POINTS_H_
