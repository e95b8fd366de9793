// SPDX-License-Identifier: Apache-2.0

// The steps that a tokenizer.json lists around its model: the normalizer changes a text before it
// is divided, and the decoder makes a text of the tokens' texts.
//
//   text = Normalize({{NormalizerKind::kNfc}}, text, scratch);
//   std::string text = DecodeTexts({{.kind = DecoderKind::kFuse}}, {"In", " the"});
#ifndef APOGEE_DATA_TOKENIZER_BPE_TEXT_STEPS_H_
#define APOGEE_DATA_TOKENIZER_BPE_TEXT_STEPS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apogee::data {

enum class NormalizerKind { kNfc, kPrepend, kReplace };

struct NormalizerStep {
  NormalizerKind kind;
  std::string from = {};  // kReplace: not empty
  std::string to = {};    // kReplace, kPrepend
};

// The normalised text: `text` itself, or in `copy`. `skip_prepend`: the text goes on from one that
// was normalised.
std::string_view Normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                           std::array<std::string, 2>& copy, bool skip_prepend = false);

enum class DecoderKind {
  kByteLevel,     // all texts are bytes of one text
  kReplace,       // in each text
  kByteFallback,  // runs of "<0x41>" become the text of these bytes
  kFuse,          // all texts become one
  kStrip,         // removes the character `from` up to `start` times before each text, `stop` after
};

struct DecoderStep {
  DecoderKind kind;
  std::string from = {}, to = {};
  int64_t start = 0, stop = 0;
};

std::string DecodeTexts(const std::vector<DecoderStep>& steps, std::vector<std::string> texts);

// The byte of "<0x41>", -1 for any other text.
int ByteOfFallback(std::string_view token);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_BPE_TEXT_STEPS_H_
