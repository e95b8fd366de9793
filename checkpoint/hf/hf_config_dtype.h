// SPDX-License-Identifier: Apache-2.0

// The dtype that a config.json names. The transformers library converts weights to it, so it has to
// be the dtype of the weights beside it.
//
//   text = WithDType(text, {"BF16", "F32"});       // "dtype": "float32"
#ifndef APOGEE_CHECKPOINT_HF_HF_CONFIG_DTYPE_H_
#define APOGEE_CHECKPOINT_HF_HF_CONFIG_DTYPE_H_

#include <set>
#include <string>

namespace apogee::checkpoint {

// The text with the values of its fields "dtype" and "torch_dtype" replaced by the narrowest dtype
// that holds all floating ones of `dtypes`, names as in safetensors files. Every other byte stays.
// Returns the text as it is if it has no such field or is not a JSON object.
std::string WithDType(const std::string& config_json, const std::set<std::string>& dtypes);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_CONFIG_DTYPE_H_
