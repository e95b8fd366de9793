// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_names.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>

#include "apogee/checkpoint/hf/hf_experts.h"

namespace apogee::checkpoint {
namespace {

// Removes `start` from the start of `text`. Returns whether it was there.
bool Take(std::string& text, const std::string& start) {
  if (!text.starts_with(start)) return false;
  text.erase(0, start.size());
  return true;
}

// The names that begin with `start`, without it.
std::set<std::string> Without(const std::string& start, const std::set<std::string>& names) {
  std::set<std::string> without;
  for (std::string name : names) {
    if (Take(name, start)) without.insert(std::move(name));
  }
  return without;
}

// Starts of names in `longer`, up to and including a dot, whose rests are names in `shorter`: those
// with so many names that it is no chance, the most frequent one first.
std::vector<std::string> LikelyStarts(const std::set<std::string>& longer,
                                      const std::set<std::string>& shorter) {
  std::map<std::string, size_t> matches;
  for (const std::string& name : longer) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (shorter.contains(name.substr(dot + 1))) ++matches[name.substr(0, dot + 1)];
    }
  }
  std::vector<std::string> likely;
  for (const auto& [start, count] : matches) {
    if (2 * count >= std::min(longer.size(), shorter.size())) likely.push_back(start);
  }
  std::ranges::stable_sort(likely, std::greater(),
                           [&](const std::string& start) { return matches.at(start); });
  return likely;
}

// Without the prefix of a family at its end: files may lack that one anyway.
std::string OuterPrefix(const std::string& prefix) {
  std::string outer = prefix;
  for (const HfFamily& family : HfFamilies()) {
    const bool longer = prefix.size() > family.prefix.size() && prefix.ends_with(family.prefix);
    if (!longer) continue;
    const std::string rest = prefix.substr(0, prefix.size() - family.prefix.size());
    if (rest.size() < outer.size()) outer = rest;
  }
  return outer;
}

// Sets names.prefix if the files lack this prefix of the model's names. `plain` and `there` lack
// the given prefixes.
absl::Status FindPrefix(const std::string& prefix, const std::set<std::string>& plain,
                        const std::set<std::string>& there, const std::string& path,
                        HfNames& names) {
  std::optional<std::string> with, without;  // an example of each
  for (auto it = plain.lower_bound(prefix); it != plain.end() && it->starts_with(prefix); ++it) {
    const std::string bare = it->substr(prefix.size());
    if (there.contains(*it)) with = *it;
    if (there.contains(bare) && !plain.contains(bare)) without = bare;
  }
  if (with && without) {
    return InvalidArgument(path, ": has both \"", *with, "\" and \"", *without,
                           "\"; all tensors of a model have the prefix \"", prefix,
                           "\", or none has");
  }
  if (without) names.prefix = prefix;
  return absl::OkStatus();
}

}  // namespace

std::string HfNames::InFiles(const std::string& asked) const {
  std::string name = asked;
  if (!Take(name, given.model)) return "";
  Take(name, prefix);
  const auto old = old_names.find(name);
  return given.files + (old == old_names.end() ? name : old->second);
}

absl::StatusOr<HfNames> MatchHfNames(const std::set<std::string>& in_files,
                                     const std::set<std::string>& asked, const NamePrefixes& given,
                                     const std::string& path) {
  HfNames names{.given = given};
  const std::set<std::string> plain = Without(given.model, asked);
  const std::set<std::string> there = Without(given.files, in_files);
  std::vector<const HfFamily*> families;  // those of the model
  for (const HfFamily& family : HfFamilies()) {
    const auto first = plain.lower_bound(family.prefix);
    const bool has_prefix = first != plain.end() && first->starts_with(family.prefix);
    if (!has_prefix && !given.model.ends_with(family.prefix)) continue;
    families.push_back(&family);
    APOGEE_RETURN_IF_ERROR(FindPrefix(family.prefix, plain, there, path, names));
  }
  std::string own_expert, other_expert;  // names in the files, of two layouts
  for (const std::string& name : plain) {
    std::string now = name;
    Take(now, names.prefix);
    const std::string old = OldHfName(now), other = OtherExpertName(now);
    if (there.contains(now)) {
      if (!other.empty()) own_expert = now;
      continue;
    }
    if (there.contains(old)) names.old_names[now] = old;
    if (there.contains(other)) {
      names.old_names[now] = other;
      other_expert = other;
    }
  }
  if (!own_expert.empty() && !other_expert.empty()) {
    return InvalidArgument(path, ": has both \"", own_expert, "\" and \"", other_expert,
                           "\"; all experts of a model have names of one kind");
  }
  for (const std::string& name : there) {
    const bool is_unused =
        IsRotaryFrequency(name) ||
        std::ranges::any_of(families, [&](const auto* family) { return family->IsUnused(name); });
    if (is_unused && !plain.contains(name)) names.buffers.push_back(given.files + name);
  }
  for (const HfFamily* family : families) {
    for (const auto& [head, table] : family->ties) {
      const std::string in_files_table = names.InFiles(given.model + table);
      if (!there.contains(head) || plain.contains(head)) continue;
      if (!plain.contains(table) || !in_files.contains(in_files_table)) continue;
      names.ties.push_back({given.files + head, in_files_table});
    }
  }
  return names;
}

std::vector<std::string> UnexpectedNames(const std::set<std::string>& in_files,
                                         const std::set<std::string>& asked, const HfNames& names) {
  std::set<std::string> known(names.buffers.begin(), names.buffers.end());
  for (const HfTie& tie : names.ties) known.insert(tie.head);
  for (const std::string& name : asked) known.insert(names.InFiles(name));
  std::vector<std::string> unexpected;
  std::ranges::set_difference(in_files, known, std::back_inserter(unexpected));
  return unexpected;
}

std::vector<NamePrefixes> FittingPrefixes(const std::set<std::string>& in_files,
                                          const std::set<std::string>& asked) {
  std::set<NamePrefixes> candidates;
  for (const std::string& start : LikelyStarts(asked, in_files)) {
    candidates.insert({.model = OuterPrefix(start)});
  }
  for (const std::string& start : LikelyStarts(in_files, asked)) {
    candidates.insert({.files = start});
  }
  std::vector<NamePrefixes> fitting;
  for (const NamePrefixes& prefixes : candidates) {
    const absl::StatusOr<HfNames> names = MatchHfNames(in_files, asked, prefixes, "");
    if (names.ok() && UnexpectedNames(in_files, asked, *names).empty()) {
      fitting.push_back(prefixes);
    }
  }
  return fitting;
}

PrefixGuess GuessPrefixes(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected) {
  PrefixGuess guess;
  const std::set<std::string> asked(missing.begin(), missing.end());
  const std::set<std::string> names(unexpected.begin(), unexpected.end());
  const std::vector<std::string> of_model = LikelyStarts(asked, names);
  const std::vector<std::string> of_files = LikelyStarts(names, asked);
  if (!of_model.empty()) {
    guess.prefixes.model = of_model[0];
  } else if (!of_files.empty()) {
    guess.prefixes.files = of_files[0];
  } else {
    return guess;
  }
  const auto& [model, files] = guess.prefixes;
  for (const std::string& name : missing) {
    std::string rest = name;
    if (!Take(rest, model) || !names.contains(files + rest)) continue;
    guess.missing.insert(name);
    guess.unexpected.insert(files + rest);
  }
  return guess;
}

}  // namespace apogee::checkpoint
