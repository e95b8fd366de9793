// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "apogee/tensor/make_context.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;

using Replay = Comparison (*)(const GoldenCase&, DType);

// The replay for each value of the metadata's "optimizer".
const std::map<std::string, Replay>& Replays() {
  // One line per family.
  // clang-format off
  static const auto& replays = *new std::map<std::string, Replay>{
      {"adafactor", &ReplayOptimizer},
      {"adalomo", &ReplayOptimizer},
      {"adam", &ReplayOptimizer},
      {"adamw", &ReplayOptimizer},
      {"adamw8bit", &ReplayOptimizer},
      {"came", &ReplayOptimizer},
      {"compressed_allreduce", &ReplayCompressedAllReduce},
      {"cpu_adam", &ReplayOptimizer},
      {"galore_adafactor", &ReplayOptimizer},
      {"galore_adamw", &ReplayOptimizer},
      {"galore_adamw8bit", &ReplayOptimizer},
      {"grad_clip", &ReplayGradClip},
      {"lamb", &ReplayOptimizer},
      {"lomo", &ReplayOptimizer},
      {"lr_schedule", &ReplayLrSchedule},
      {"model", &ReplayModel},
      {"onebit_adam", &ReplayOneBit},
      {"quant", &ReplayQuant},
      {"scaled_adam", &ReplayOptimizer},
      {"sgd", &ReplayOptimizer},
  };
  // clang-format on
  return replays;
}

// The replay for each name of a file that records a folder.
const std::map<std::string, Comparison (*)(const std::string&)>& FolderReplays() {
  static const auto& replays = *new std::map<std::string, Comparison (*)(const std::string&)>{
      {"cases.json", &ReplayTokenizer}, {"expected.json", &ReplayDataset}};
  return replays;
}

// Families whose recorded variants we offer as options.
bool OffersVariants(const std::string& family) {
  return family == "adamw8bit" || family == "scaled_adam";
}

struct CaseFile {
  fs::path path;
  std::string label;
};

// "sgd/momentum" of .../sgd/momentum.safetensors, "datasets/raw_u16" of a folder.
std::string LabelOf(const fs::path& file, const fs::path& root) {
  fs::path named = file;
  if (FolderReplays().contains(file.filename().string())) {
    named = file.parent_path();
  } else {
    named.replace_extension();
  }
  const fs::path label = named.lexically_relative(root);
  if (file != root && label.has_parent_path()) return label.string();
  named = fs::absolute(named);
  return (named.parent_path().filename() / named.filename()).string();
}

// The cases below `path`, sorted. `error` is set if the folder cannot be searched.
std::vector<CaseFile> FindCases(const fs::path& path, std::error_code& error) {
  std::vector<CaseFile> cases;
  if (fs::is_regular_file(path, error)) {
    cases.push_back({path, LabelOf(path, path)});
    return cases;
  }
  if (error) return cases;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".safetensors" &&
        !FolderReplays().contains(it->path().filename().string())) {
      continue;
    }
    if (it->is_regular_file()) cases.push_back({it->path(), LabelOf(it->path(), path)});
  }
  std::ranges::sort(cases, {}, &CaseFile::label);
  return cases;
}

enum class Verdict { kPass, kFail, kSkip };
struct Outcome {
  Verdict verdict;
  std::string detail;
};

Outcome RunCase(const CaseFile& file, const VerifyOptions& options) {
  try {
    const auto folder_replay = FolderReplays().find(file.path.filename().string());
    if (folder_replay != FolderReplays().end()) {
      const Comparison comparison = folder_replay->second(file.path.string());
      if (!comparison.skipped().empty()) return {Verdict::kSkip, comparison.skipped()};
      return {comparison.passed() ? Verdict::kPass : Verdict::kFail, comparison.Summary()};
    }
    // One context per case, so cases share nothing.
    const ContextPtr context = ValueOrThrow(
        MakeContext(ValueOrThrow(ParseDevice(options.device)).For(0), options.num_threads));
    absl::StatusOr<GoldenCase> golden = GoldenCase::Open(file.path.string(), file.label, context);
    if (!golden.ok()) return {Verdict::kFail, Message(golden.status())};
    const std::string conformance = golden->text("conformance");
    if (conformance == "informational") return {Verdict::kSkip, "informational"};
    const std::string family = golden->text("optimizer");
    const auto replay = Replays().find(family);
    if (conformance == "variant" && !OffersVariants(family)) {
      return {Verdict::kSkip, "variant, not offered"};
    }
    if (replay == Replays().end()) return {Verdict::kFail, family + " is not built yet"};
    const Comparison comparison = replay->second(*golden, options.dtype);
    return {comparison.passed() ? Verdict::kPass : Verdict::kFail, comparison.Summary()};
  } catch (const std::exception& error) {
    return {Verdict::kFail, error.what()};
  }
}

}  // namespace

int Verify(const std::string& path, const VerifyOptions& options, std::ostream& out,
           std::ostream& errors) {
  std::error_code error;
  const std::vector<CaseFile> cases = FindCases(path, error);
  if (error) {
    errors << "apogee verify: " << path << ": " << error.message() << "\n";
    return 2;
  }
  if (cases.empty()) {
    errors << "apogee verify: " << path
           << ": no .safetensors files, no expected.json and no cases.json below this folder\n";
    return 2;
  }
  int passed = 0;
  int failed = 0;
  for (const CaseFile& file : cases) {
    const auto [verdict, detail] = RunCase(file, options);
    const char* word = verdict == Verdict::kPass   ? "PASS"
                       : verdict == Verdict::kFail ? "FAIL"
                                                   : "skip";
    passed += verdict == Verdict::kPass;
    failed += verdict == Verdict::kFail;
    out << word << " " << file.label << "  " << detail << std::endl;
  }
  out << passed << " passed, " << failed << " failed" << std::endl;
  return failed > 0 ? 1 : 0;
}

}  // namespace apogee::verify
