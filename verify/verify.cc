// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/verify.h"

#include <algorithm>
#include <array>
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
      {"dion", &ReplayOptimizer},
      {"galore_adafactor", &ReplayOptimizer},
      {"galore_adamw", &ReplayOptimizer},
      {"galore_adamw8bit", &ReplayOptimizer},
      {"grad_clip", &ReplayGradClip},
      {"lamb", &ReplayOptimizer},
      {"lomo", &ReplayOptimizer},
      {"lr_schedule", &ReplayLrSchedule},
      {"model", &ReplayModel},
      {"muon", &ReplayMuon},
      {"normuon", &ReplayMuon},
      {"onebit_adam", &ReplayOneBit},
      {"quant", &ReplayQuant},
      {"scaled_adam", &ReplayOptimizer},
      {"schedule_free", &ReplayOptimizer},
      {"sgd", &ReplayOptimizer},
      {"soap", &ReplayOptimizer},
  };
  // clang-format on
  return replays;
}

// A folder whose numbers are in one file is one case, with everything below it.
struct FolderReplay {
  const char* file;
  Comparison (*replay)(const std::string& path, const ContextPtr& context, DType dtype);
};

// By the "format" of an expected.json.
Comparison ReplayExpected(const std::string& path) {
  const Json golden = ReadJson(path);
  const bool is_alias = golden.is_object() && golden.value("format", "") == "interop-hf-alias/1";
  return is_alias ? ReplayHfAlias(path) : ReplayDataset(path);
}

// A model, an adapter of one, or a model in 4 bits.
Comparison ReplayFolder(const std::string& path, const ContextPtr& context, DType dtype) {
  const auto golden = GoldenCase::Open(path, path, context, "interop-nf4-folder/");
  if (golden.ok()) return ReplayNf4Folder(path, context, dtype);
  const bool is_adapter = fs::exists(fs::path(path).parent_path() / "adapter_config.json");
  return is_adapter ? ReplayPeft(path, context, dtype) : ReplayHfModel(path, context, dtype);
}

constexpr std::array<FolderReplay, 3> kFolderReplays = {{
    {"cases.json",
     [](const std::string& path, const ContextPtr&, DType) { return ReplayTokenizer(path); }},
    {"expected.json",
     [](const std::string& path, const ContextPtr&, DType) { return ReplayExpected(path); }},
    {"expected.safetensors", &ReplayFolder},
}};

// Null if the file records only itself.
const FolderReplay* FolderReplayOf(const fs::path& file) {
  for (const FolderReplay& replay : kFolderReplays) {
    if (file.filename() == replay.file) return &replay;
  }
  return nullptr;
}

// Families whose recorded variants we offer as options.
bool OffersVariants(const std::string& family) {
  return family == "adamw8bit" || family == "scaled_adam" || family == "schedule_free" ||
         family == "soap";
}

struct CaseFile {
  fs::path path;
  std::string label;
};

// "sgd/momentum" of .../sgd/momentum.safetensors, "datasets/raw_u16" of a folder.
std::string LabelOf(const fs::path& file, const fs::path& root) {
  fs::path named = fs::absolute(file).lexically_normal();
  if (FolderReplayOf(file) != nullptr) {
    named = named.parent_path();
  } else {
    named.replace_extension();
  }
  const fs::path label = named.lexically_relative(fs::absolute(root).lexically_normal());
  if (file != root && label.has_parent_path()) return label.string();
  return (named.parent_path().filename() / named.filename()).string();
}

// Adds the cases in `folder` and below it.
void FindCases(const fs::path& folder, const fs::path& root, std::vector<CaseFile>& cases,
               std::error_code& error) {
  for (const FolderReplay& replay : kFolderReplays) {
    const fs::path file = folder / replay.file;
    if (fs::is_regular_file(file)) return cases.push_back({file, LabelOf(file, root)});
  }
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory() && !it->is_symlink()) {
      FindCases(it->path(), root, cases, error);
    } else if (it->is_regular_file() && it->path().extension() == ".safetensors") {
      cases.push_back({it->path(), LabelOf(it->path(), root)});
    }
    if (error) return;
  }
}

// The cases at `path`, sorted. `error` is set if a folder cannot be searched.
std::vector<CaseFile> FindCases(const fs::path& path, std::error_code& error) {
  std::vector<CaseFile> cases;
  if (fs::is_regular_file(path, error)) {
    cases.push_back({path, LabelOf(path, path)});
  } else if (!error) {
    FindCases(path, path, cases, error);
  }
  std::ranges::sort(cases, {}, &CaseFile::label);
  return cases;
}

enum class Verdict { kPass, kFail, kSkip };
struct Outcome {
  Verdict verdict;
  std::string detail;
};

Outcome OutcomeOf(const Comparison& comparison) {
  if (!comparison.skipped().empty()) return {Verdict::kSkip, comparison.skipped()};
  return {comparison.passed() ? Verdict::kPass : Verdict::kFail, comparison.Summary()};
}

Outcome RunCase(const CaseFile& file, const VerifyOptions& options) {
  try {
    // One context per case, so cases share nothing.
    const ContextPtr context = ValueOrThrow(
        MakeContext(ValueOrThrow(ParseDevice(options.device)).For(0), options.num_threads));
    const FolderReplay* folder = FolderReplayOf(file.path);
    if (folder != nullptr) {
      return OutcomeOf(folder->replay(file.path.string(), context, options.dtype));
    }
    const auto nf4 = GoldenCase::Open(file.path.string(), file.label, context, "interop-nf4/");
    if (nf4.ok()) return OutcomeOf(ReplayNf4(*nf4, options.dtype));
    absl::StatusOr<GoldenCase> golden =
        GoldenCase::Open(file.path.string(), file.label, context, "colossal-golden/");
    if (!golden.ok()) return {Verdict::kFail, Message(golden.status())};
    const std::string conformance = golden->text("conformance");
    if (conformance == "informational") return {Verdict::kSkip, "informational"};
    const std::string family = golden->text("optimizer");
    if (family.empty()) return {Verdict::kFail, "its metadata has no \"optimizer\""};
    const auto replay = Replays().find(family);
    if (conformance == "variant" && !OffersVariants(family)) {
      return {Verdict::kSkip, "variant, not offered"};
    }
    if (replay == Replays().end()) return {Verdict::kFail, family + " is not built yet"};
    return OutcomeOf(replay->second(*golden, options.dtype));
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
