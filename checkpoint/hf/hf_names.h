// SPDX-License-Identifier: Apache-2.0

// Translates between tensor names in files of the Hugging Face hub and names in the models here.
//
//   APOGEE_ASSIGN_OR_RETURN(HfNames names, MatchHfNames(in_files, asked, {}, "dir"));
//   names.InFiles("transformer.wte.weight");          // "wte.weight" in a file of a bare GPT-2
//   names.buffers;                                    // {"h.0.attn.bias", ...}: to be ignored
//
// Hub files differ from the models' names in three ways:
//
//   - Files saved from a model without its head lack the prefix ("transformer." for GPT-2, "model."
//     for Llama).
//   - Older files have buffers, which are not weights: GPT-2's causal masks ("h.0.attn.bias",
//     "h.0.attn.masked_bias") and Llama's "rotary_emb.inv_freq".
//   - Some files have the head ("lm_head.weight") of a model that ties it to its table of tokens.
//     These values are then there twice.
//
// If your own module holds a model as "gpt", its names begin with "gpt.". Say so with NamePrefixes;
// GuessPrefixes finds a prefix that the caller has forgotten.
#ifndef APOGEE_CHECKPOINT_HF_HF_NAMES_H_
#define APOGEE_CHECKPOINT_HF_HF_NAMES_H_

#include <set>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

// `model`: begins the model's names but not the files'. `files`: the reverse.
struct NamePrefixes {
  std::string model = {};
  std::string files = {};
};

struct HfNames {
  NamePrefixes given;
  // The part of the asked names, after the model's prefix, that the files lack; "" for none.
  std::string prefix;
  // Names in the files, with and without prefix, that are not asked for and of no use.
  std::vector<std::string> buffers;
  // Names in the files: a head that was not asked for, and the table of tokens, which was. Their
  // values must be equal. "" for none.
  std::string tied_head, tied_table;

  // The name of a tensor in the files, if it is there. "" if the name lacks the model's prefix: the
  // files cannot have it.
  std::string InFiles(const std::string& asked) const;
};

// InvalidArgument if only some of the files' tensors have the prefix. `path` is for messages.
absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const NamePrefixes& given,
                                     const std::string& path);

struct PrefixGuess {
  NamePrefixes prefixes;                      // one of them is set; both "": no guess
  std::set<std::string> missing, unexpected;  // the names it would match
};
// Guesses from the names that were asked for and not found, and the names in files that were not
// asked for.
PrefixGuess GuessPrefixes(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_NAMES_H_
