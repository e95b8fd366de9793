// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_names.h"

#include <algorithm>
#include <map>
#include <optional>

namespace apogee::checkpoint {
namespace {

constexpr const char* kGpt2Prefix = "transformer.";
constexpr const char* kLlamaPrefix = "model.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kGpt2Table = "transformer.wte.weight";
constexpr const char* kLlamaTable = "model.embed_tokens.weight";

// Removes `start` from the start of `text`. Returns whether it was there.
bool Take(std::string& text, const std::string& start) {
  if (!text.starts_with(start)) return false;
  text.erase(0, start.size());
  return true;
}

// Removes a number with a dot, such as "12.", from the start of `text`. Returns whether there was
// one.
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

// The names that begin with `start`, without it.
std::set<std::string> Without(const std::string& start, const std::set<std::string>& names) {
  std::set<std::string> without;
  for (std::string name : names) {
    if (Take(name, start)) without.insert(std::move(name));
  }
  return without;
}

// Returns a start of names in `longer`, up to and including a dot, so that most of their rests are
// names in `shorter`. "" if there is none.
std::string CommonStart(const std::vector<std::string>& longer,
                        const std::vector<std::string>& shorter) {
  const std::set<std::string> names(shorter.begin(), shorter.end());
  std::map<std::string, size_t> matches;
  for (const std::string& name : longer) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (names.contains(name.substr(dot + 1))) ++matches[name.substr(0, dot + 1)];
    }
  }
  const auto most =
      std::ranges::max_element(matches, {}, [](const auto& start) { return start.second; });
  // A few matches among many names may be chance.
  const bool holds =
      most != matches.end() && 2 * most->second >= std::min(longer.size(), shorter.size());
  return holds ? most->first : "";
}

}  // namespace

std::string HfNames::InFiles(const std::string& asked) const {
  std::string name = asked;
  if (!Take(name, given.model)) return "";
  Take(name, prefix);
  return given.files + name;
}

absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const NamePrefixes& given,
                                     const std::string& path) {
  HfNames names{.given = given, .prefix = {}, .buffers = {}, .tied_head = {}, .tied_table = {}};
  const std::set<std::string> plain = Without(given.model, asked);
  const std::set<std::string> there = Without(given.files, in_files);
  for (const std::string prefix : {kGpt2Prefix, kLlamaPrefix}) {
    std::optional<std::string> with, without;  // an example of each
    for (const std::string& name : plain) {
      if (!name.starts_with(prefix)) continue;
      const std::string bare = name.substr(prefix.size());
      if (there.contains(name)) with = name;
      if (there.contains(bare) && !plain.contains(bare)) without = bare;
    }
    if (with && without) {
      return InvalidArgument(path, ": has both \"", *with, "\" and \"", *without,
                             "\"; all tensors of a model have the prefix \"", prefix,
                             "\", or none has");
    }
    if (without) names.prefix = prefix;
  }
  for (const std::string& name : there) {
    if (!plain.contains(name) && IsBuffer(name)) names.buffers.push_back(given.files + name);
  }
  if (!there.contains(kHead) || plain.contains(kHead)) return names;
  for (const char* table : {kGpt2Table, kLlamaTable}) {
    const std::string in_file = names.InFiles(given.model + table);
    if (!plain.contains(table) || !in_files.contains(in_file)) continue;
    names.tied_head = given.files + kHead;
    names.tied_table = in_file;
  }
  return names;
}

PrefixGuess GuessPrefixes(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected) {
  PrefixGuess guess;
  guess.prefixes.model = CommonStart(missing, unexpected);
  if (guess.prefixes.model.empty()) guess.prefixes.files = CommonStart(unexpected, missing);
  const auto& [model, files] = guess.prefixes;
  if (model.empty() && files.empty()) return guess;
  const std::set<std::string> names(unexpected.begin(), unexpected.end());
  for (const std::string& name : missing) {
    std::string rest = name;
    if (!Take(rest, model) || !names.contains(files + rest)) continue;
    guess.missing.insert(name);
    guess.unexpected.insert(files + rest);
  }
  return guess;
}

}  // namespace apogee::checkpoint
