// SPDX-License-Identifier: Apache-2.0

// Replays recorded token files: ids and documents of the sound ones, and that each malformed one is
// refused.
#include <algorithm>
#include <filesystem>

#include "apogee/data/token_files/megatron_index.h"
#include "apogee/data/token_files/stored_tokens.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;
using data::StoredTokensPtr;
using data::TokenFormat;

StoredTokensPtr Open(const fs::path& path, TokenFormat format) {
  return ValueOrThrow(data::OpenStoredTokens({path.string()}, {.format = format}));
}

// The ids, and the same through the interface of training unless an int32 cannot hold one.
void CompareTokens(const StoredTokensPtr& tokens, const std::vector<int64_t>& golden,
                   const std::string& where, Comparison& comparison) {
  std::vector<int64_t> stored(static_cast<size_t>(tokens->num_tokens()));
  tokens->ReadStored(0, stored);
  comparison.Elements({stored.begin(), stored.end()}, {golden.begin(), golden.end()}, {},
                      where + ", ids");
  const bool fits =
      std::ranges::all_of(golden, [](int64_t id) { return id >= 0 && id < data::kIdLimit; });
  std::vector<int32_t> ids(stored.size());
  const bool read = ErrorToStatus([&] {
                      tokens->Read(0, ids);
                      return 0;
                    }).ok();
  comparison.Number(read, fits, {}, where + ", ids that training takes");
  if (!fits) return;
  comparison.Elements({ids.begin(), ids.end()}, {golden.begin(), golden.end()}, {},
                      where + ", ids in training");
}

void CompareBegins(const StoredTokensPtr& tokens, const std::vector<int64_t>& golden,
                   const std::string& where, Comparison& comparison) {
  const std::vector<int64_t> begins = tokens->DocumentBegins(0, tokens->num_tokens());
  comparison.Elements({begins.begin(), begins.end()}, {golden.begin(), golden.end()}, {},
                      where + ", beginnings of documents");
}

void CompareFlat(const fs::path& file, const Json& golden, TokenFormat format,
                 Comparison& comparison) {
  const std::string where = file.filename().string();
  const StoredTokensPtr tokens = Open(file, format);
  CompareTokens(tokens, golden.at("tokens"), where, comparison);
  if (golden.contains("document_starts")) {
    CompareBegins(tokens, golden.at("document_starts"), where, comparison);
  }
}

// All shards as one source, in the order of the recorded list.
void CompareShards(const fs::path& folder, const Json& shards, Comparison& comparison) {
  std::vector<std::string> paths;
  std::vector<int64_t> ids, begins;
  for (const Json& shard : shards) {
    paths.push_back((folder / shard.at("file").get<std::string>()).string());
    CompareFlat(paths.back(), shard, TokenFormat::kLlmc, comparison);
    for (const Json& begin : shard.at("document_starts")) {
      begins.push_back(static_cast<int64_t>(ids.size()) + begin.get<int64_t>());
    }
    for (const Json& id : shard.at("tokens")) ids.push_back(id);
  }
  const StoredTokensPtr tokens = ValueOrThrow(data::OpenStoredTokens(paths, {}));
  CompareTokens(tokens, ids, "all shards", comparison);
  CompareBegins(tokens, begins, "all shards", comparison);
}

void CompareMegatron(const fs::path& file, const Json& golden, Comparison& comparison) {
  const StoredTokensPtr tokens = Open(file, TokenFormat::kMegatron);
  const std::string where = file.filename().string();
  std::vector<int64_t> ids, starts, begins;
  for (const Json& sequence : golden.at("sequences")) {
    starts.push_back(static_cast<int64_t>(ids.size()));
    for (const Json& id : sequence) ids.push_back(id);
  }
  CompareTokens(tokens, ids, where, comparison);
  const auto size = static_cast<int64_t>(ids.size());
  const std::vector<size_t> indices = golden.at("document_indices");
  for (size_t d = 0; d + 1 < indices.size(); ++d) {
    // Documents without tokens begin nowhere.
    const int64_t end = indices[d + 1] < starts.size() ? starts[indices[d + 1]] : size;
    if (starts[indices[d]] < end) begins.push_back(starts[indices[d]]);
  }
  CompareBegins(tokens, begins, where, comparison);
  comparison.Number(static_cast<double>(*tokens->Facts()[0].num_documents),
                    static_cast<double>(indices.size() - 1), {}, where + ", documents");
  if (!golden.contains("modes")) return;
  const std::vector<int64_t> modes = golden.at("modes");
  const std::string bin = fs::path(file).replace_extension(".bin").string();
  const data::MegatronIndex index = ValueOrThrow(data::MegatronIndex::Read(
      ValueOrThrow(data::OpenBytes(file.string())), bin, static_cast<int64_t>(fs::file_size(bin))));
  comparison.Number(index.has_modes(), true, {}, where + ", has modes");
  for (size_t i = 0; i < modes.size() && index.has_modes(); ++i) {
    comparison.Number(ValueOrThrow(index.Mode(static_cast<int64_t>(i))),
                      static_cast<double>(modes[i]), {}, where + ", modes");
  }
}

TokenFormat FormatOf(const std::string& name) {
  if (name == "llm.c") return TokenFormat::kLlmc;
  if (name == "raw u16") return TokenFormat::kRawU16;
  if (name == "raw u32") return TokenFormat::kRawU32;
  APOGEE_CHECK(name == "megatron", "read_as is \"", name, "\", which is not built yet");
  return TokenFormat::kMegatron;
}

void CompareMalformed(const fs::path& folder, const Json& files, Comparison& comparison) {
  for (const auto& [name, golden] : files.items()) {
    const TokenFormat format = FormatOf(golden.at("read_as"));
    if (golden.at("problem").is_null()) {
      if (format == TokenFormat::kMegatron) {
        CompareMegatron(folder / name, golden, comparison);
      } else {
        CompareFlat(folder / name, golden, format, comparison);
      }
      continue;
    }
    const bool opens = data::OpenStoredTokens({(folder / name).string()}, {.format = format}).ok();
    if (opens) comparison.Fail(name + " was accepted: " + golden.at("what").get<std::string>());
    comparison.Number(opens, false, {}, name);
  }
}

}  // namespace

Comparison ReplayDataset(const std::string& path) {
  Comparison comparison;
  const Json golden = ReadJson(path);
  const fs::path folder = fs::path(path).parent_path();
  const std::string format = golden.value("format", "");
  if (format == "interop-malformed/1") {
    CompareMalformed(folder, golden.at("files"), comparison);
    return comparison;
  }
  APOGEE_CHECK(format == "interop-dataset/1", "format is \"", format,
               "\"; known: interop-dataset/1, interop-malformed/1");
  const std::string kind = golden.at("kind");
  if (golden.contains("shards")) {
    CompareShards(folder, golden.at("shards"), comparison);
  } else if (kind == "megatron") {
    CompareMegatron(folder / "data.idx", golden, comparison);
  } else if (kind == "llm.c") {
    CompareFlat(folder / "tokens.bin", golden, TokenFormat::kLlmc, comparison);
  } else {
    CompareFlat(folder / "train.bin", golden,
                FormatOf("raw " + golden.at("dtype").get<std::string>()), comparison);
  }
  return comparison;
}

}  // namespace apogee::verify
