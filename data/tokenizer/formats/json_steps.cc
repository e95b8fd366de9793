// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/json_steps.h"

#include <utility>

namespace apogee::data {
namespace {

using Reader = absl::Status (*)(const JsonNode*, const std::string&, BpeParts&);

// The parts of a Sequence, one after the other.
absl::Status ReadSequence(JsonFields& fields, const char* list, Reader read, BpeParts& parts) {
  const std::vector<JsonNode>& items = fields.List(list);
  APOGEE_RETURN_IF_ERROR(fields.Finish());
  for (size_t i = 0; i < items.size(); ++i) {
    APOGEE_RETURN_IF_ERROR(
        read(&items[i], fields.PlaceOf(list) + "[" + std::to_string(i) + "]", parts));
  }
  return absl::OkStatus();
}

// The text of {"String": text}.
std::string Pattern(JsonFields& fields, const char* name) {
  JsonFields pattern(fields.Object(name), fields.PlaceOf(name));
  if (pattern.Has("Regex")) {
    fields.Refuse(name, "Apogee replaces only a {\"String\": ...}, no regular expression");
    return "";
  }
  std::string text = pattern.Text("String");
  const absl::Status status = pattern.Finish();
  if (!status.ok()) fields.Refuse(name, Message(status));
  if (text.empty()) fields.Refuse(name, "the pattern is empty");
  return text;
}

// Options of ByteLevel that move only the offsets of tokens.
void IgnoreOffsets(JsonFields& fields) { fields.ExpectOneOf("trim_offsets", {"true", "false"}); }

// A step of the pre_tokenizer that finds the pieces.
absl::Status ReadSplit(JsonFields& fields, BpeParts& parts) {
  JsonFields pattern(fields.Object("pattern"), fields.PlaceOf("pattern"));
  const std::string regex = pattern.Text("Regex");
  fields.ExpectOneOf("behavior", {"\"Isolated\""});
  fields.ExpectOneOf("invert", {"false"});
  APOGEE_RETURN_IF_ERROR(fields.Finish());
  const std::optional<PieceRule> rule = RuleOfPattern(regex);
  if (!rule) pattern.Refuse("Regex", "Apogee knows the patterns of GPT-2, Llama 3 and Qwen2");
  APOGEE_RETURN_IF_ERROR(pattern.Finish());
  if (parts.rule != PieceRule::kWhole || parts.byte_level) {
    return InvalidArgument(fields.PlaceOf("type"),
                           " is \"Split\": Apogee does one Split, before ByteLevel");
  }
  parts.rule = *rule;
  return absl::OkStatus();
}

absl::Status ReadByteLevel(JsonFields& fields, BpeParts& parts) {
  if (parts.byte_level) fields.Refuse("type", "ByteLevel is given twice");
  parts.byte_level = true;
  parts.add_prefix_space = fields.Boolean("add_prefix_space");
  if (parts.add_prefix_space && parts.rule != PieceRule::kWhole) {
    fields.Refuse("add_prefix_space", "Apogee does not do it after a Split");
  }
  IgnoreOffsets(fields);
  if (fields.BooleanOr("use_regex", true)) {
    if (parts.rule != PieceRule::kWhole) {
      fields.Refuse("use_regex", "Apogee does not do it after a Split");
    }
    parts.rule = PieceRule::kGpt2;
  }
  return fields.Finish();
}

}  // namespace

absl::Status ReadNormalizer(const JsonNode* node, const std::string& place, BpeParts& parts) {
  if (node == nullptr) return absl::OkStatus();
  JsonFields fields(*node, place);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ReadSequence(fields, "normalizers", &ReadNormalizer, parts);
  NormalizerStep step{NormalizerKind::kNfc};
  if (type == "Prepend") {
    step.kind = NormalizerKind::kPrepend;
    step.to = fields.Text("prepend");
  } else if (type == "Replace") {
    step.kind = NormalizerKind::kReplace;
    step.from = Pattern(fields, "pattern");
    step.to = fields.Text("content");
  } else if (type != "NFC") {
    fields.Refuse("type", "Apogee does NFC, Prepend, Replace and Sequence");
  }
  parts.normalizer.push_back(std::move(step));
  return fields.Finish();
}

absl::Status ReadPreTokenizer(const JsonNode* node, const std::string& place, BpeParts& parts) {
  if (node == nullptr) return absl::OkStatus();
  JsonFields fields(*node, place);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ReadSequence(fields, "pretokenizers", &ReadPreTokenizer, parts);
  if (type == "Split") return ReadSplit(fields, parts);
  if (type == "ByteLevel") return ReadByteLevel(fields, parts);
  fields.Refuse("type", "Apogee does ByteLevel, Split and Sequence");
  return fields.Finish();
}

absl::Status ReadDecoder(const JsonNode* node, const std::string& place, BpeParts& parts) {
  if (node == nullptr) {
    return InvalidArgument(place, " is null: it would put a space after each token; expected ",
                           "ByteLevel or a Sequence of Replace, ByteFallback, Fuse and Strip");
  }
  JsonFields fields(*node, place);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ReadSequence(fields, "decoders", &ReadDecoder, parts);
  DecoderStep step{DecoderKind::kFuse};
  if (type == "ByteLevel") {
    step.kind = DecoderKind::kByteLevel;
    fields.ExpectOneOf("add_prefix_space", {"true", "false"});  // of no effect here
    fields.ExpectOneOf("use_regex", {"true", "false"});
    IgnoreOffsets(fields);
  } else if (type == "Replace") {
    step.kind = DecoderKind::kReplace;
    step.from = Pattern(fields, "pattern");
    step.to = fields.Text("content");
  } else if (type == "ByteFallback") {
    step.kind = DecoderKind::kByteFallback;
  } else if (type == "Strip") {
    step.kind = DecoderKind::kStrip;
    step.from = fields.Text("content");
    if (step.from.empty()) fields.Refuse("content", "expected a character");
    step.start = fields.Integer("start");
    step.stop = fields.Integer("stop");
  } else if (type != "Fuse") {
    fields.Refuse("type", "Apogee does ByteLevel, Replace, ByteFallback, Fuse, Strip and Sequence");
  }
  parts.decoder.push_back(std::move(step));
  return fields.Finish();
}

absl::Status ReadPostProcessor(const JsonNode* node, const std::string& place, BpeParts& parts) {
  if (node == nullptr) return absl::OkStatus();
  JsonFields fields(*node, place);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ReadSequence(fields, "processors", &ReadPostProcessor, parts);
  if (type == "ByteLevel") {
    fields.ExpectOneOf("add_prefix_space", {"true", "false"});  // of no effect here
    fields.ExpectOneOf("use_regex", {"true", "false"});
    IgnoreOffsets(fields);
    return fields.Finish();
  }
  if (type != "TemplateProcessing") {
    fields.Refuse("type", "Apogee does TemplateProcessing, ByteLevel and Sequence");
    return fields.Finish();
  }
  fields.List("pair");  // Apogee encodes one text at a time
  JsonFields special(fields.Object("special_tokens"), fields.PlaceOf("special_tokens"));
  const std::vector<JsonNode>& single = fields.List("single");
  APOGEE_RETURN_IF_ERROR(fields.Finish());
  if (!parts.prefix.empty() || !parts.suffix.empty()) {
    return InvalidArgument(place, ": Apogee does one TemplateProcessing");
  }
  bool has_text = false;
  for (const JsonNode& item : single) {
    JsonFields entry(item, place + ".single");
    if (entry.Has("Sequence")) {
      JsonFields sequence(entry.Object("Sequence"), place + ".single.Sequence");
      sequence.ExpectOneOf("id", {"\"A\""});
      sequence.Integer("type_id");
      APOGEE_RETURN_IF_ERROR(sequence.Finish());
      if (has_text) return InvalidArgument(place, ".single has the text twice");
      has_text = true;
    } else {
      JsonFields token(entry.Object("SpecialToken"), place + ".single.SpecialToken");
      const std::string id = token.Text("id");
      token.Integer("type_id");
      APOGEE_RETURN_IF_ERROR(token.Finish());
      JsonFields named(special.Object(id.c_str()), special.PlaceOf(id.c_str()));
      named.Text("id");
      named.List("tokens");
      for (const JsonNode& number : named.List("ids")) {
        if (number.kind != JsonNode::Kind::kInteger || number.integer < 0 ||
            number.integer > INT32_MAX) {
          named.Refuse("ids", "expected token ids, not " + number.Shown());
        }
        (has_text ? parts.suffix : parts.prefix).push_back(static_cast<int32_t>(number.integer));
      }
      APOGEE_RETURN_IF_ERROR(named.Finish());
    }
    APOGEE_RETURN_IF_ERROR(entry.Finish());
  }
  if (!has_text) return InvalidArgument(place, ".single lacks the text, {\"Sequence\": ...}");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const std::vector<JsonNode>& list) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < list.size(); ++i) {
    JsonFields fields(list[i], "added_tokens[" + std::to_string(i) + "]");
    const int64_t id = fields.Integer("id");
    if (id < 0 || id > INT32_MAX) fields.Refuse("id", "expected a number from 0 to 2^31 - 1");
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.text = fields.Text("content");
    if (token.text.empty()) fields.Refuse("content", "a token has a text");
    token.single_word = fields.Boolean("single_word");
    token.lstrip = fields.Boolean("lstrip");
    token.rstrip = fields.Boolean("rstrip");
    token.normalized = fields.Boolean("normalized");
    token.special = fields.Boolean("special");
    APOGEE_RETURN_IF_ERROR(fields.Finish());
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace apogee::data
