// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_fit.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/text/text.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

constexpr size_t kMostListed = 8;  // names of a kind
// Shapes and dtypes: all of a model with many layers.
constexpr size_t kMostShapes = 1000;
constexpr int64_t kComparedBytes = int64_t{1} << 20;

std::vector<int64_t> SizesOf(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

bool Converts(const std::string& from, DType to) {
  const std::optional<DType> dtype = TensorDType(from);
  return dtype && (*dtype == to || (IsFloat(*dtype) && IsFloat(to)));
}

std::string Describe(const SafetensorsEntry& entry) {
  std::string sizes;
  for (const int64_t size : entry.shape) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  return entry.dtype + " [" + sizes + "]";
}

// A line for each of the first sentences, and the number of the others.
std::string Lines(const std::vector<std::string>& sentences, const char* more,
                  size_t most = kMostListed) {
  std::string text;
  for (size_t i = 0; i < std::min(sentences.size(), most); ++i) text += "\n  " + sentences[i];
  if (sentences.size() <= most) return text;
  return text + Concat("\n  ... and ", sentences.size() - most, " more ", more);
}

std::vector<std::string> Quoted(const char* what, const std::vector<std::string>& names,
                                const std::set<std::string>& without) {
  std::vector<std::string> sentences;
  for (const std::string& name : names) {
    if (!without.contains(name)) sentences.push_back(Concat(what, " \"", name, "\""));
  }
  return sentences;
}

// The text for a guessed prefix; "" if there is no guess.
std::string Hint(const PrefixGuess& guess) {
  const auto& [model, files] = guess.prefixes;
  if (guess.prefixes.empty()) return "";
  const bool of_model = !model.empty();
  const std::string& prefix = of_model ? model : files;
  return Concat(
      "\n  ", guess.missing.size(), of_model ? " names of the model" : " names in the files",
      " begin with \"", prefix, "\", those ", of_model ? "in the files" : "of the model",
      " do not (\"", *guess.missing.begin(), "\" of the model is \"", *guess.unexpected.begin(),
      "\" there): load with ", of_model ? "model_prefix" : "file_prefix", " = \"", prefix, "\"");
}

std::string Described(const NamePrefixes& prefixes) {
  const bool of_model = !prefixes.model.empty();
  return Concat(of_model ? "model_prefix" : "file_prefix", " = \"",
                of_model ? prefixes.model : prefixes.files, "\"");
}

// The text for several prefixes that fit.
std::string Choice(const std::vector<NamePrefixes>& fitting) {
  std::vector<std::string> texts;
  for (const NamePrefixes& prefixes : fitting) texts.push_back(Described(prefixes));
  return Concat("\n  the files fit several parts of the model: load with ",
                JoinTexts(texts, " or with "));
}

// Matches the names, with the prefix that fits if none is given.
absl::Status FindNames(const std::set<std::string>& in_files, const std::set<std::string>& asked,
                       const LoadWeightsOptions& options, const std::string& path, HfFit& fit) {
  const NamePrefixes given{options.model_prefix, options.file_prefix};
  APOGEE_ASSIGN_OR_RETURN(fit.names, MatchHfNames(in_files, asked, given, path));
  if (!given.empty() || UnexpectedNames(in_files, asked, fit.names).empty()) {
    return absl::OkStatus();
  }
  fit.fitting = FittingPrefixes(in_files, asked);
  if (fit.fitting.size() != 1) return absl::OkStatus();
  const NamePrefixes found = fit.fitting[0];
  fit.fitting.clear();
  APOGEE_ASSIGN_OR_RETURN(fit.names, MatchHfNames(in_files, asked, found, path));
  return absl::OkStatus();
}

// Whether this file has the tensor that the target wants; else adds to the problems.
void CompareShape(const HfTarget& target, const SafetensorsEntry& entry, HfFit& fit) {
  const bool same_shape = entry.shape == SizesOf(target.shape);
  if (same_shape && Converts(entry.dtype, target.dtype)) return;
  fit.problems.push_back(Concat(same_shape ? "dtype" : "shape", " of \"", target.name, "\": is ",
                                Describe(entry), ", wanted ", SafetensorsDType(target.dtype), " ",
                                target.shape));
}

}  // namespace

absl::StatusOr<HfFit> CompareNames(const HfWeights& weights, const std::vector<HfTarget>& targets,
                                   const LoadWeightsOptions& options, const std::string& path) {
  HfFit fit;
  std::set<std::string> asked, in_files;
  for (const HfTarget& target : targets) asked.insert(target.name);
  for (const auto& [name, place] : weights.tensors()) in_files.insert(name);
  APOGEE_RETURN_IF_ERROR(FindNames(in_files, asked, options, path, fit));
  std::set<const void*> found;  // memory of targets whose name was found
  for (const HfTarget& target : targets) {
    if (target.memory == nullptr) continue;
    if (in_files.contains(fit.names.InFiles(target.name))) found.insert(target.memory);
  }
  std::set<std::string> seen;
  for (const HfTarget& target : targets) {
    if (!seen.insert(target.name).second) continue;
    const auto there = weights.tensors().find(fit.names.InFiles(target.name));
    if (there != weights.tensors().end()) {
      CompareShape(target, *there->second.entry, fit);
    } else if (!found.contains(target.memory)) {
      fit.report.missing.push_back(target.name);
    }
  }
  fit.report.unexpected = UnexpectedNames(in_files, asked, fit.names);
  for (const HfTie& tie : fit.names.ties) fit.report.unexpected.push_back(tie.head);
  std::ranges::sort(fit.report.unexpected);
  fit.report.buffers = fit.names.buffers;
  fit.report.prefix = fit.names.prefix;
  fit.report.model_prefix = fit.names.given.model;
  fit.report.file_prefix = fit.names.given.files;
  return fit;
}

absl::StatusOr<std::string> CompareTied(const HfWeights& weights, const HfTie& tie) {
  const auto& head = weights.tensors().at(tie.head);
  const auto& table = weights.tensors().at(tie.table);
  if (head.entry->dtype != table.entry->dtype || head.entry->shape != table.entry->shape) {
    return Concat("it is ", Describe(*head.entry), ", the table is ", Describe(*table.entry));
  }
  const int64_t bytes = head.entry->end - head.entry->begin;
  const int64_t element = SafetensorsDTypeSize(head.entry->dtype);
  std::vector<std::byte> a, b;
  for (int64_t begin = 0; begin < bytes; begin += kComparedBytes) {
    const auto count = static_cast<size_t>(std::min(kComparedBytes, bytes - begin));
    a.resize(count);
    b.resize(count);
    APOGEE_RETURN_IF_ERROR(
        head.file->file->Read(head.file->data_start + head.entry->begin + begin, a));
    APOGEE_RETURN_IF_ERROR(
        table.file->file->Read(table.file->data_start + table.entry->begin + begin, b));
    const auto different = std::ranges::mismatch(a, b).in1;
    if (different == a.end()) continue;
    return Concat("element ", (begin + (different - a.begin())) / element, " differs");
  }
  return std::string();
}

void NoteTied(const HfTie& tie, const std::string& difference, HfFit& fit) {
  if (difference.empty()) {
    std::erase(fit.report.unexpected, tie.head);
    fit.report.tied.push_back(tie.head);
    return;
  }
  fit.tied_problems.push_back(Concat(
      "\"", tie.head, "\" is not \"", tie.table, "\", to which this model ties it (", difference,
      "): make the model with tie_word_embeddings = false, or leave the head out with "
      "strict = false"));
}

absl::Status CheckFit(const HfFit& fit, const std::string& path, bool strict) {
  std::string problems;
  if (strict && !fit.fitting.empty()) {
    problems = Choice(fit.fitting);
  } else if (strict) {
    std::vector<std::string> missing = fit.report.missing;
    std::erase_if(
        missing, [&](const std::string& name) { return !name.starts_with(fit.names.given.model); });
    const PrefixGuess guess = GuessPrefixes(missing, fit.report.unexpected);
    std::set<std::string> told = guess.unexpected;
    // A head that differs is told there.
    if (!fit.tied_problems.empty()) {
      for (const HfTie& tie : fit.names.ties) told.insert(tie.head);
    }
    problems = Hint(guess) + Lines(Quoted("missing", missing, guess.missing), "missing");
    problems += Lines(fit.tied_problems, "tied");
    problems += Lines(Quoted("unexpected", fit.report.unexpected, told), "unexpected");
  }
  problems += Lines(fit.problems, "of another shape or dtype", kMostShapes);
  if (problems.empty()) return absl::OkStatus();
  const NamePrefixes& used = fit.names.given;
  const std::string with = used.empty() ? "" : " with " + Described(used);
  return InvalidArgument(path, ": the weights do not fit this model", with, ":", problems);
}

absl::StatusOr<HfFit> FitWeights(const HfWeights& weights, const std::vector<HfTarget>& targets,
                                 const LoadWeightsOptions& options, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(HfFit fit, CompareNames(weights, targets, options, path));
  for (const HfTie& tie : fit.names.ties) {
    APOGEE_ASSIGN_OR_RETURN(const std::string difference, CompareTied(weights, tie));
    NoteTied(tie, difference, fit);
  }
  APOGEE_RETURN_IF_ERROR(CheckFit(fit, path, options.strict));
  return fit;
}

}  // namespace apogee::checkpoint
