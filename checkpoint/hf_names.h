// Names of tensors as files on the Hugging Face hub have them, and as the models here have them.
//
//   APOGEE_ASSIGN_OR_RETURN(HfNames names, MatchHfNames(in_files, asked, "dir"));
//   names.InFiles("transformer.wte.weight");          // "wte.weight" in a file of a bare GPT-2
//   names.buffers;                                      // {"h.0.attn.bias", ...}: to be ignored
//
// Files that were saved from the model without its head lack its prefix ("transformer." of GPT-2,
// "model." of Llama). Older ones carry buffers, which are no weights: GPT-2's causal masks
// ("h.0.attn.bias", "h.0.attn.masked_bias") and Llama's "rotary_emb.inv_freq".
#ifndef APOGEE_CHECKPOINT_HF_NAMES_H_
#define APOGEE_CHECKPOINT_HF_NAMES_H_

#include <set>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

struct HfNames {
  // What the files leave away from the asked names; "" for nothing.
  std::string prefix;
  // In the files, with and without prefix: not asked for, and of no use.
  std::vector<std::string> buffers;

  // The name that a tensor has in the files, if it is there.
  std::string InFiles(const std::string& asked) const {
    return !prefix.empty() && asked.starts_with(prefix) ? asked.substr(prefix.size()) : asked;
  }
};

// InvalidArgument for files that have some tensors with the prefix and some without. `path` is for
// messages.
absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_NAMES_H_
