// SPDX-License-Identifier: Apache-2.0

// The special tokens of a model's config.json, for programs that generate text.
//
//   config.token_ids["pad_token_id"] = {50256};
#ifndef APOGEE_NN_MODELS_TOKEN_IDS_H_
#define APOGEE_NN_MODELS_TOKEN_IDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace apogee::nn {

// By field name: "bos_token_id", "eos_token_id" or "pad_token_id". An empty list is written as
// null, several ids as a list. A field that is not in the map is not written; the transformers
// library then uses its own default.
using TokenIds = std::map<std::string, std::vector<int64_t>>;

// For a model that was not read from a file: writes null, since the library's default ids belong to
// its own vocabulary.
inline TokenIds NoTokenIds() { return {{"bos_token_id", {}}, {"eos_token_id", {}}}; }

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TOKEN_IDS_H_
