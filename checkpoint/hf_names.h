// SPDX-License-Identifier: Apache-2.0

// Names of tensors as files on the Hugging Face hub have them, and as the models here have them.
//
//   APOGEE_ASSIGN_OR_RETURN(HfNames names, MatchHfNames(in_files, asked, {}, "dir"));
//   names.InFiles("transformer.wte.weight");          // "wte.weight" in a file of a bare GPT-2
//   names.buffers;                                      // {"h.0.attn.bias", ...}: to be ignored
//
// Files that were saved from the model without its head lack its prefix ("transformer." of GPT-2,
// "model." of Llama). Older ones carry buffers, which are no weights: GPT-2's causal masks
// ("h.0.attn.bias", "h.0.attn.masked_bias") and Llama's "rotary_emb.inv_freq". Some hold the head
// of a model that ties it to its table of tokens a second time ("lm_head.weight").
//
// A module of one's own that holds a model as "gpt" has its names with "gpt." in front: the caller
// says so (NamePrefixes), and GuessPrefixes tells what the caller may have forgotten.
#ifndef APOGEE_CHECKPOINT_HF_NAMES_H_
#define APOGEE_CHECKPOINT_HF_NAMES_H_

#include <set>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

// What the names of one side begin with and those of the other do not.
struct NamePrefixes {
  std::string model = {};
  std::string files = {};
};

struct HfNames {
  NamePrefixes given;
  // What the files leave away from the asked names behind the model's prefix; "" for nothing.
  std::string prefix;
  // In the files, with and without prefix: not asked for, and of no use.
  std::vector<std::string> buffers;
  // In the files: a head that was not asked for, and the table of tokens that was. They must be
  // equal. "" for none.
  std::string tied_head, tied_table;

  // The name that a tensor has in the files, if it is there; "" for one without the model's prefix,
  // of which the files know nothing.
  std::string InFiles(const std::string& asked) const;
};

// InvalidArgument for files that have some tensors with the prefix and some without. `path` is for
// messages.
absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const NamePrefixes& given,
                                     const std::string& path);

struct PrefixGuess {
  NamePrefixes prefixes;                      // of one side; both "": there is nothing to guess
  std::set<std::string> missing, unexpected;  // what it would match
};
// Of names that were asked for in vain and names in files that nobody asked for.
PrefixGuess GuessPrefixes(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_NAMES_H_
