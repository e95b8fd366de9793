// SPDX-License-Identifier: Apache-2.0

// What the names of tensors in files of the Hugging Face hub have in common within a family of
// models. hf_names.h applies it; a new family is a row of the table.
//
//   for (const HfFamily& family : HfFamilies()) {
//     if (name.starts_with(family.prefix)) ...                 // "gpt_neox.layers.0.mlp..."
//   }
#ifndef APOGEE_CHECKPOINT_HF_HF_FAMILIES_H_
#define APOGEE_CHECKPOINT_HF_HF_FAMILIES_H_

#include <string>
#include <vector>

namespace apogee::checkpoint {

// Tensors that a model with tied embeddings has once, and that files may have twice.
struct HfTie {
  std::string head;   // only in files
  std::string table;  // in the model
};

struct HfFamily {
  // Begins the names of the model without its head. Files saved from that model lack it.
  std::string prefix;
  // Tensors in files that the models here lack, since they change no result: masks that the library
  // used to save, parts that only other heads read. # is a whole number. Names are whole, or lack
  // the prefix.
  std::vector<std::string> unused = {};
  std::vector<HfTie> ties = {};

  bool IsUnused(const std::string& name) const;
};

const std::vector<HfFamily>& HfFamilies();

// Rotary frequencies, which older files of every family have.
bool IsRotaryFrequency(const std::string& name);

// The name that older files give to a tensor: "LayerNorm.gamma" for "LayerNorm.weight". "" if it
// has none.
std::string OldHfName(const std::string& name);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_FAMILIES_H_
