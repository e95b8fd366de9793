// SPDX-License-Identifier: Apache-2.0

// FamilyFields reads the fields of config.json that the families share, with checks and refusals. A
// family's own source reads the others.
//
//   FamilyFields f(fields, notice, path);
//   DecoderConfig config = f.Sizes({.vocab_size = 32000, .hidden_size = 4096, ...});
//   f.Rope({.theta = 10000}, config);
#ifndef APOGEE_NN_MODELS_FAMILIES_FAMILY_FIELDS_H_
#define APOGEE_NN_MODELS_FAMILIES_FAMILY_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/nn/models/decoder.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/nn/models/hf_fields.h"

namespace apogee::nn {

// What a family calls the fields of Sizes.
struct SizeNames {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* max_tokens = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
};

// The library's values for missing fields.
struct FamilyDefaults {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t layers = 0, heads = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  int64_t max_tokens = 0;
  double norm_eps = 1e-6;
  bool tied = false;
  double theta = 10000;
  double rotary_fraction = 1;
  std::optional<int64_t> pad = {};
  SizeNames names = SizeNames();
};

class FamilyFields {
 public:
  FamilyFields(HfFields& fields, const HfNotice& notice, const std::string& path)
      : fields(fields), notice_(notice), path_(path) {}

  // Sizes, norm_eps, tied embeddings and special tokens.
  DecoderConfig Sizes(const FamilyDefaults& defaults);
  // Rotary positions of every version of the library. Refuses scalings other than linear and
  // llama3.
  void Rope(const FamilyDefaults& defaults, DecoderConfig& config);
  // The activation under this name of a field. Refuses those that `gated` MLPs, or all, lack.
  Activation ReadActivation(const std::string& name, const std::string& missing, bool gated);
  // The window of each layer, by layer_types or else where `slides` says so. 0: no window.
  template <typename Fn>
  void Windows(int64_t window, const Fn& slides, DecoderConfig& config);
  // Gives lookups of the padding token no gradient, as the library's models do.
  int64_t PaddingId(std::optional<int64_t> missing, int64_t vocab_size);
  double Dropout(const std::string& name, double missing);
  // Gives a notice about a dropout that these models lack.
  void TellDropout(const std::string& name, double missing, const char* of);
  void Tell(const std::string& text) const;
  // Gives a notice about every field that nothing has read; refuses those of rotary positions.
  void TellUnread();

  HfFields& fields;

 private:
  void SetWindows(int64_t window, const std::vector<bool>& slides, DecoderConfig& config);

  const HfNotice& notice_;
  const std::string& path_;
};

template <typename Fn>
void FamilyFields::Windows(int64_t window, const Fn& slides, DecoderConfig& config) {
  std::vector<bool> of_layer;
  for (int64_t i = 0; i < config.num_layers; ++i) of_layer.push_back(window > 0 && slides(i));
  SetWindows(window, of_layer, config);
}

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_FAMILIES_FAMILY_FIELDS_H_
