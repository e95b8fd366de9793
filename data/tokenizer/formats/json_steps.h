// SPDX-License-Identifier: Apache-2.0

// The parts of a tokenizer.json around the model: which normalizer, pre_tokenizer, decoder,
// post_processor and added_tokens Apogee does, and the refusal of all others.
//
//   BpeParts parts;
//   APOGEE_RETURN_IF_ERROR(ReadNormalizer(root.Optional("normalizer"), "normalizer", parts));
//
// A nullptr stands for null. `place` names the part in messages.
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_JSON_STEPS_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_JSON_STEPS_H_

#include <string>
#include <vector>

#include "apogee/data/tokenizer/bpe/bpe_tokenizer.h"
#include "apogee/data/tokenizer/formats/json_fields.h"

namespace apogee::data {

absl::Status ReadNormalizer(const JsonNode* node, const std::string& place, BpeParts& parts);
// Sets byte_level, rule and add_prefix_space.
absl::Status ReadPreTokenizer(const JsonNode* node, const std::string& place, BpeParts& parts);
absl::Status ReadDecoder(const JsonNode* node, const std::string& place, BpeParts& parts);
absl::Status ReadPostProcessor(const JsonNode* node, const std::string& place, BpeParts& parts);
// Checks no ids.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const std::vector<JsonNode>& list);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_JSON_STEPS_H_
