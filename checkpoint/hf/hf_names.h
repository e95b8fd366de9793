// SPDX-License-Identifier: Apache-2.0

// Translates between tensor names in files of the Hugging Face hub and names in the models here.
//
//   APOGEE_ASSIGN_OR_RETURN(HfNames names, MatchHfNames(in_files, asked, {}, "dir"));
//   names.InFiles("transformer.wte.weight");          // "wte.weight" in a file of a bare GPT-2
//   names.buffers;                                   // {"h.0.attn.bias", ...}: to be ignored
//
// Hub files differ from the models' names in five ways (hf_families.h):
//
//   - Files saved from a model without its head lack the prefix ("transformer." for GPT-2, "model."
//     for Llama).
//   - Some have tensors that change no result: masks and frequencies that older versions of the
//     library saved, and parts that only other heads read.
//   - Some have the head ("lm_head.weight") of a model that ties it to its table of tokens. These
//     values are then there twice.
//   - The oldest files of BERT call a norm's weight and bias gamma and beta.
//   - Experts have names of several kinds, and may be fused (hf_experts.h).
//
// If your own module holds a model as "gpt", its names begin with "gpt.". Say so with NamePrefixes,
// or let FittingPrefixes find it.
#ifndef APOGEE_CHECKPOINT_HF_HF_NAMES_H_
#define APOGEE_CHECKPOINT_HF_HF_NAMES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_families.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

// `model`: begins the model's names but not the files'. `files`: the reverse.
struct NamePrefixes {
  std::string model = {};
  std::string files = {};

  bool empty() const { return model.empty() && files.empty(); }
  auto operator<=>(const NamePrefixes&) const = default;
};

struct HfNames {
  NamePrefixes given;
  // The part of the asked names, after the model's prefix, that the files lack; "" for none.
  std::string prefix = {};
  // Names in the files, with and without prefix, that are not asked for and of no use: buffers of
  // older versions of the library, and parts that only other heads read.
  std::vector<std::string> buffers = {};
  // Names in the files: heads that were not asked for, and the tables that were. Their values must
  // be equal.
  std::vector<HfTie> ties = {};
  // Older names in the files, and those of another layout of experts, without the files' prefix, by
  // those that they stand for.
  std::map<std::string, std::string> old_names = {};

  // The name of a tensor in the files, if it is there. "" if the name lacks the model's prefix: the
  // files cannot have it.
  std::string InFiles(const std::string& asked) const;
};

// InvalidArgument if only some of the files' tensors have the prefix. `path` is for messages.
absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const NamePrefixes& given,
                                     const std::string& path);

// The names in the files that nothing asks for, except those of no use and tied heads.
std::vector<std::string> UnexpectedNames(const std::set<std::string>& in_files,
                                         const std::set<std::string>& asked, const HfNames& names);

// The prefixes with which no tensor of the files is unexpected. Several: the model holds several
// models of that kind.
std::vector<NamePrefixes> FittingPrefixes(const std::set<std::string>& in_files,
                                          const std::set<std::string>& asked);

struct PrefixGuess {
  NamePrefixes prefixes;                      // one of them is set; both "": no guess
  std::set<std::string> missing, unexpected;  // the names it would match
};
// Guesses from the names that were asked for and not found, and the names in files that were not
// asked for. For messages: some names may fit by chance.
PrefixGuess GuessPrefixes(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_NAMES_H_
