// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/core/text/text.h"
#include "apogee/data/corpus_sources.h"
#include "apogee/data/token_files/token_file.h"
#include "apogee/nn/losses.h"
#include "apogee/tools/command.h"
#include "apogee/tools/language_model.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

namespace fs = std::filesystem;

struct EvaluateFlags {
  LanguageModelFlags model;
  std::vector<std::string> data;
  std::string token_format;
  int64_t block = 0, batch = 0;  // 0: chosen for the model
  int64_t limit_tokens = 0;      // 0: none
  bool json = false;
};

// What is predicted: every token but the first.
struct Evaluated {
  data::TokenSourcePtr tokens;
  // The bytes of text that the predicted tokens stand for, if the first n are predicted; null for
  // token files.
  std::function<int64_t(int64_t predicted)> bytes_of;
};

bool IsTokenFile(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx");
}

// The files below folders; of a Megatron pair only the index.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);  // may be a pattern
      continue;
    }
    APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> found, data::TextFilesOf(path));
    for (const std::string& file : found) {
      const bool paired =
          file.ends_with(".bin") && fs::exists(file.substr(0, file.size() - 4) + ".idx", error);
      if (!paired) files.push_back(file);
    }
  }
  return files;
}

absl::StatusOr<Evaluated> FromTokenFiles(const std::vector<std::string>& files,
                                         const EvaluateFlags& flags, int64_t vocab_size) {
  data::TokenFileOptions options{.vocab_size = vocab_size};
  if (!flags.token_format.empty()) {
    APOGEE_ASSIGN_OR_RETURN(options.format, data::ParseTokenFormat(flags.token_format));
  }
  Evaluated data;
  APOGEE_ASSIGN_OR_RETURN(data.tokens, data::OpenTokenFiles(files, options));
  return data;
}

absl::StatusOr<Evaluated> FromText(const std::vector<std::string>& files,
                                   const data::TokenizerPtr& tokenizer) {
  APOGEE_ASSIGN_OR_RETURN(const data::TextSource text, data::ReadTextFiles(files));
  std::vector<int32_t> ids = tokenizer->prefix();
  const bool has_prefix = !ids.empty();
  tokenizer->Encode(text.bytes, ids);
  Evaluated data;
  data.bytes_of = [ids, tokenizer, has_prefix,
                   size = static_cast<int64_t>(text.bytes.size())](int64_t predicted) {
    const auto decoded = [&](int64_t first, int64_t count) {
      const std::span<const int32_t> part(ids.data() + first, static_cast<size_t>(count));
      return static_cast<int64_t>(tokenizer->Decode(part, /*skip_special=*/true).size());
    };
    if (predicted + 1 < std::ssize(ids)) return decoded(1, predicted);
    return has_prefix ? size : size - decoded(0, 1);
  };
  data.tokens = std::make_shared<data::MemoryTokenSource>(std::move(ids), std::vector<int64_t>{0},
                                                          text.description);
  return data;
}

// The sum of the losses of windows [first, first + count) of `block` tokens, or of a shorter one.
double LossOf(const LanguageModel& model, const data::TokenSource& tokens, int64_t first,
              int64_t count, int64_t block) {
  std::vector<int32_t> read(static_cast<size_t>(count * block + 1));
  tokens.Read(first, read);
  const std::vector<int64_t> inputs(read.begin(), read.end() - 1);
  const std::vector<int64_t> targets(read.begin() + 1, read.end());
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return Tensor::FromVector<int64_t>(values, {count, block}, model.context);
  };
  const Tensor mean = nn::CrossEntropyLoss()((*model.hf.module)(tensor(inputs)), tensor(targets));
  return mean.Item() * static_cast<double>(count * block);
}

struct Result {
  double loss = 0;  // nats per token
  int64_t tokens = 0, windows = 0, block = 0;
  int64_t bytes = 0;  // 0: not known
};

absl::StatusOr<Result> Evaluate(const EvaluateFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(flags.data));
  const auto token_files = std::ranges::count_if(files, IsTokenFile);
  if (token_files != 0 && token_files != std::ssize(files)) {
    return InvalidArgument(
        "--data: some of the files are token files (.bin, .idx) and some are "
        "not; give one kind");
  }
  if (token_files == 0 && !flags.token_format.empty()) {
    return InvalidArgument("--token-format ", flags.token_format,
                           " is for token files, whose names end in .bin or .idx");
  }
  APOGEE_ASSIGN_OR_RETURN(const LanguageModel model,
                          LoadLanguageModel(flags.model, /*needs_tokenizer=*/token_files == 0));
  Evaluated data;
  if (token_files > 0) {
    APOGEE_ASSIGN_OR_RETURN(data, FromTokenFiles(files, flags, model.hf.vocab_size));
  } else {
    APOGEE_ASSIGN_OR_RETURN(data, FromText(files, model.tokenizer));
  }
  // Logits of this many tokens at once: 200 MB for a vocabulary of 50,000.
  constexpr int64_t kTokensAtOnce = 1024;
  const int64_t positions = model.hf.max_tokens;
  if (flags.block > positions) {
    return InvalidArgument("--block ", flags.block, " is more than the ", positions,
                           " positions of the model");
  }
  Result result{.block = flags.block > 0 ? flags.block : std::min(positions, kTokensAtOnce)};
  const int64_t batch =
      flags.batch > 0 ? flags.batch : std::max<int64_t>(1, kTokensAtOnce / result.block);
  const int64_t all = data.tokens->num_tokens() - 1;
  result.tokens = flags.limit_tokens > 0 ? std::min(all, flags.limit_tokens) : all;
  if (result.tokens < 1) {
    return InvalidArgument("--data: ", data.tokens->description(), " has ", all + 1,
                           " tokens; at least 2 are needed, one to predict the other");
  }
  const autograd::NoGradGuard no_grad;
  model.hf.module->Train(false);
  double sum = 0;
  for (int64_t at = 0; at < result.tokens;) {
    const int64_t block = std::min(result.block, result.tokens - at);
    const int64_t count = std::min(batch, (result.tokens - at) / block);
    sum += LossOf(model, *data.tokens, at, count, block);
    at += count * block;
    result.windows += count;
  }
  result.loss = sum / static_cast<double>(result.tokens);
  if (data.bytes_of) result.bytes = data.bytes_of(result.tokens);
  return result;
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

void Print(const Result& r, bool json) {
  const double sum = r.loss * static_cast<double>(r.tokens);
  const double per_byte = r.bytes > 0 ? sum / static_cast<double>(r.bytes) : 0;
  if (json) {
    // Infinity and NaN are no JSON.
    const auto number = [](double value) {
      return std::isfinite(value) ? Format("%.17g", value) : std::string("null");
    };
    std::cout << "{\"loss\": " << number(r.loss) << ", \"perplexity\": " << number(std::exp(r.loss))
              << ", \"tokens\": " << r.tokens << ", \"windows\": " << r.windows
              << ", \"block\": " << r.block;
    if (r.bytes > 0) {
      std::cout << ", \"bytes\": " << r.bytes << ", \"nats_per_byte\": " << number(per_byte);
    }
    std::cout << "}\n";
    return;
  }
  std::cout << "loss " << Format("%.5f", r.loss) << " nats per token, perplexity "
            << Format("%.4g", std::exp(r.loss)) << "\n"
            << FormatThousands(r.tokens) << " tokens in " << FormatThousands(r.windows)
            << (r.windows == 1 ? " window" : " windows") << " of at most " << r.block << "\n";
  if (r.bytes > 0) {
    std::cout << Format("%.5f", per_byte) << " nats per byte ("
              << Format("%.4f", per_byte / std::log(2)) << " bits), " << FormatThousands(r.bytes)
              << " bytes\n";
  }
}

absl::Status Run(const EvaluateFlags& flags) {
  APOGEE_ASSIGN_OR_RETURN(const Result result, Evaluate(flags));
  Print(result, flags.json);
  return absl::OkStatus();
}

}  // namespace

void AddEvaluateCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* command = app.add_subcommand(
      "evaluate", "Measure the loss and perplexity of a folder's language model on data");
  command
      ->add_option("dir", flags->model.dir,
                   "A Hugging Face folder: config.json, weights, tokenizer.json")
      ->required();
  command
      ->add_option("--data", flags->data,
                   "Text files, or token files (.bin and .idx, as apogee data writes them), or "
                   "folders of one kind")
      ->required();
  command->add_option("--token-format", flags->token_format,
                      "Of token files without a header: raw_u16 or raw_u32");
  command
      ->add_option("--block", flags->block,
                   "Tokens of a window. Windows do not overlap, and a token sees only its own. "
                   "Default: the model's positions, at most 1024")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command
      ->add_option("--batch", flags->batch, "Windows at once; default: as many as make 1024 tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--limit-tokens", flags->limit_tokens, "Predict only so many tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 62));
  AddModelOptions(*command, flags->model, "; token files need none");
  command->add_flag("--json", flags->json, "One line of JSON");
  command->footer("Exit status: 0 done, 1 damaged files, 2 wrong use or bad input.");
  command->callback([flags, &exit_code] {
    const auto done = ErrorToStatus([&] { return Run(*flags); });
    const absl::Status status = done.ok() ? *done : done.status();
    exit_code = status.ok() ? 0 : ReportError("evaluate", status);
  });
}

}  // namespace apogee::tools
