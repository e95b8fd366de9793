// SPDX-License-Identifier: Apache-2.0

// Names of layers in options: ends of their full names. Internal.
//
//   MatchesEnd("q_proj", "layers.0.self_attn.q_proj");     // true
//   IsOutputName("lm_head");                               // the layer that computes logits
#ifndef APOGEE_NN_LAYER_NAMES_H_
#define APOGEE_NN_LAYER_NAMES_H_

#include <string>

namespace apogee::nn {

// Whether `name` is `key`, or ends with it after a dot.
inline bool MatchesEnd(const std::string& key, const std::string& name) {
  return name == key || name.ends_with("." + key);
}

// As PEFT and bitsandbytes leave out of "all linear layers".
inline bool IsOutputName(const std::string& name) {
  return MatchesEnd("lm_head", name) || MatchesEnd("embed_out", name) ||
         MatchesEnd("cls.predictions.decoder", name);
}

}  // namespace apogee::nn

#endif  // APOGEE_NN_LAYER_NAMES_H_
