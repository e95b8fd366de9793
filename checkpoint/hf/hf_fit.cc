// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_fit.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "apogee/checkpoint/format/tensor_file.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

constexpr size_t kMostListed = 8;  // per kind
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
std::string Lines(const std::vector<std::string>& sentences, const char* more) {
  std::string text;
  for (size_t i = 0; i < std::min(sentences.size(), kMostListed); ++i) {
    text += "\n  " + sentences[i];
  }
  if (sentences.size() <= kMostListed) return text;
  return text + Concat("\n  ... and ", sentences.size() - kMostListed, " more ", more);
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
  if (model.empty() && files.empty()) return "";
  const bool of_model = !model.empty();
  const std::string& prefix = of_model ? model : files;
  return Concat(
      "\n  ", guess.missing.size(), of_model ? " names of the model" : " names in the files",
      " begin with \"", prefix, "\", those ", of_model ? "in the files" : "of the model",
      " do not (\"", *guess.missing.begin(), "\" of the model is \"", *guess.unexpected.begin(),
      "\" there): load with ", of_model ? "model_prefix" : "file_prefix", " = \"", prefix, "\"");
}

}  // namespace

absl::StatusOr<HfFit> CompareNames(const HfWeights& weights, const std::vector<TensorPart>& targets,
                                   const LoadWeightsOptions& options, const std::string& path) {
  HfFit fit;
  std::set<std::string> asked, in_files;
  for (const TensorPart& target : targets) asked.insert(target.name);
  for (const auto& [name, place] : weights.tensors()) in_files.insert(name);
  APOGEE_ASSIGN_OR_RETURN(
      fit.names, MatchHfNames(in_files, asked, {options.model_prefix, options.file_prefix}, path));
  std::set<std::string> known(fit.names.buffers.begin(), fit.names.buffers.end());
  std::set<const void*> found;  // memory of targets whose name was found
  for (const TensorPart& target : targets) {
    known.insert(fit.names.InFiles(target.name));
    if (in_files.contains(fit.names.InFiles(target.name))) found.insert(target.value.raw());
  }
  std::set<std::string> seen;
  for (const TensorPart& target : targets) {
    const auto there = weights.tensors().find(fit.names.InFiles(target.name));
    if (there == weights.tensors().end()) {
      if (!found.contains(target.value.raw()) && seen.insert(target.name).second) {
        fit.report.missing.push_back(target.name);
      }
      continue;
    }
    const SafetensorsEntry& entry = *there->second.entry;
    const Shape& shape = target.layout.logical_shape();
    const bool same_shape = entry.shape == SizesOf(shape);
    if (same_shape && Converts(entry.dtype, target.value.dtype())) continue;
    if (!seen.insert(target.name).second) continue;
    fit.problems.push_back(Concat(same_shape ? "dtype" : "shape", " of \"", target.name, "\": is ",
                                  Describe(entry), ", wanted ",
                                  SafetensorsDType(target.value.dtype()), " ", shape));
  }
  for (const std::string& name : in_files) {
    if (!known.contains(name)) fit.report.unexpected.push_back(name);
  }
  fit.report.buffers = fit.names.buffers;
  fit.report.prefix = fit.names.prefix;
  return fit;
}

absl::StatusOr<std::string> CompareTied(const HfWeights& weights, const HfNames& names) {
  const auto& head = weights.tensors().at(names.tied_head);
  const auto& table = weights.tensors().at(names.tied_table);
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

void NoteTied(const std::string& difference, HfFit& fit) {
  if (difference.empty()) {
    std::erase(fit.report.unexpected, fit.names.tied_head);
    fit.report.tied.push_back(fit.names.tied_head);
    return;
  }
  fit.tied_problem =
      Concat("\"", fit.names.tied_head, "\" is not \"", fit.names.tied_table,
             "\", to which this model ties it (", difference,
             "): make the model with tie_word_embeddings = false, or leave the head out with "
             "strict = false");
}

absl::Status CheckFit(const HfFit& fit, const std::string& path, bool strict) {
  std::string problems;
  if (strict) {
    const PrefixGuess guess = GuessPrefixes(fit.report.missing, fit.report.unexpected);
    std::set<std::string> told = guess.unexpected;
    problems = Hint(guess) + Lines(Quoted("missing", fit.report.missing, guess.missing), "missing");
    if (!fit.tied_problem.empty()) {
      problems += "\n  " + fit.tied_problem;
      told.insert(fit.names.tied_head);
    }
    problems += Lines(Quoted("unexpected", fit.report.unexpected, told), "unexpected");
  }
  problems += Lines(fit.problems, "of another shape or dtype");
  return problems.empty() ? absl::OkStatus()
                          : InvalidArgument(path, ": the weights do not fit this model:", problems);
}

}  // namespace apogee::checkpoint
