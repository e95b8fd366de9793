#include "apogee/checkpoint/hf_names.h"

#include <algorithm>
#include <optional>

namespace apogee::checkpoint {
namespace {

constexpr const char* kGpt2Prefix = "transformer.";
constexpr const char* kLlamaPrefix = "model.";

// Takes `start` off `text`, if it starts so.
bool Take(std::string& text, const std::string& start) {
  if (!text.starts_with(start)) return false;
  text.erase(0, start.size());
  return true;
}

// Takes "12." off.
bool TakeNumber(std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || text[digits] != '.') return false;
  text.erase(0, digits + 1);
  return true;
}

bool IsBuffer(const std::string& name) {
  std::string rest = name;
  Take(rest, kGpt2Prefix);
  if (Take(rest, "h.")) {
    return TakeNumber(rest) && (rest == "attn.bias" || rest == "attn.masked_bias");
  }
  rest = name;
  Take(rest, kLlamaPrefix);
  if (Take(rest, "layers.") && !(TakeNumber(rest) && Take(rest, "self_attn."))) return false;
  return rest == "rotary_emb.inv_freq";
}

}  // namespace

absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const std::string& path) {
  HfNames names;
  for (const std::string prefix : {kGpt2Prefix, kLlamaPrefix}) {
    std::optional<std::string> with, without;  // an example of each
    for (const std::string& name : asked) {
      if (!name.starts_with(prefix)) continue;
      const std::string bare = name.substr(prefix.size());
      if (in_files.contains(name)) with = name;
      if (in_files.contains(bare) && !asked.contains(bare)) without = bare;
    }
    if (with && without) {
      return InvalidArgument(path, ": has both \"", *with, "\" and \"", *without,
                             "\"; all tensors of a model have the prefix \"", prefix,
                             "\", or none has");
    }
    if (without) names.prefix = prefix;
  }
  for (const std::string& name : in_files) {
    if (!asked.contains(name) && IsBuffer(name)) names.buffers.push_back(name);
  }
  return names;
}

}  // namespace apogee::checkpoint
