// SPDX-License-Identifier: Apache-2.0

// Tokens of special meaning, as a model's config.json has them: for programs that generate text.
//
//   config.token_ids["pad_token_id"] = {50256};
#ifndef APOGEE_NN_MODELS_TOKEN_IDS_H_
#define APOGEE_NN_MODELS_TOKEN_IDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace apogee::nn {

// By field: "bos_token_id", "eos_token_id" or "pad_token_id". No id is null in the file, several
// are a list; a field that is not here is not written, and the transformers library then takes its
// own default.
using TokenIds = std::map<std::string, std::vector<int64_t>>;

// Of a model that was not read from a file: null, for the library's are those of its own
// vocabulary.
inline TokenIds NoTokenIds() { return {{"bos_token_id", {}}, {"eos_token_id", {}}}; }

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TOKEN_IDS_H_
