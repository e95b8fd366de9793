// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/generation/generate.h"
#include "apogee/tools/command.h"
#include "apogee/tools/language_model.h"
#include "apogee/tools/report_error.h"

namespace apogee::tools {
namespace {

using Tokens = std::vector<int64_t>;

constexpr int64_t kDefaultNewTokens = 128;

struct GenerateFlags {
  LanguageModelFlags model;
  std::vector<std::string> prompts, prompt_files;
  nn::GenerateOptions options{.max_new_tokens = -1};  // -1: as many as fit, at most the default
  bool no_stop = false, json = false;
};

// The text of a file without its last line end.
absl::StatusOr<std::string> PromptOf(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  APOGEE_ASSIGN_OR_RETURN(std::string text,
                          checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, kMaxBytes));
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// With the tokens that the tokenizer asks to put before a text.
absl::StatusOr<Tokens> TokensOf(const std::string& prompt, const LanguageModel& model) {
  std::vector<int32_t> ids = model.tokenizer->prefix();
  model.tokenizer->Encode(prompt, ids);
  if (ids.empty()) {
    return InvalidArgument("a prompt is empty, and the tokenizer (", model.tokenizer->description(),
                           ") puts nothing before a text; give at least a character");
  }
  if (std::ssize(ids) > model.hf.max_tokens) {
    return InvalidArgument("a prompt has ", ids.size(), " tokens, the model has ",
                           model.hf.max_tokens, " positions; shorten \"", prompt.substr(0, 40),
                           "...\"");
  }
  return Tokens(ids.begin(), ids.end());
}

absl::Status SetNewTokens(const std::vector<Tokens>& prompts, int64_t positions,
                          nn::GenerateOptions& options) {
  size_t longest = 0;
  for (const Tokens& prompt : prompts) longest = std::max(longest, prompt.size());
  // The last new token takes no position.
  const int64_t fit = positions - static_cast<int64_t>(longest) + 1;
  if (options.max_new_tokens > fit) {
    return InvalidArgument("--max-new-tokens ", options.max_new_tokens, " is more than the ", fit,
                           " that fit: the model has ", positions,
                           " positions, the longest prompt ", longest, " tokens");
  }
  if (options.max_new_tokens < 0) options.max_new_tokens = std::min(kDefaultNewTokens, fit);
  options.max_tokens = positions;
  return absl::OkStatus();
}

// Ids that the tokenizer lacks, the padding of the model's vocabulary, stand for no text.
std::string Decoded(const data::Tokenizer& tokenizer, const Tokens& tokens) {
  std::vector<int32_t> ids;
  for (const int64_t token : tokens) {
    if (token < tokenizer.vocab_size()) ids.push_back(static_cast<int32_t>(token));
  }
  return tokenizer.Decode(ids, /*skip_special=*/true);
}

// A tokenizer may treat the begin of a text in its own way, so the new text is what comes behind
// that of the prompt.
std::string NewText(const data::Tokenizer& tokenizer, const Tokens& prompt, const Tokens& drawn) {
  Tokens all = prompt;
  all.insert(all.end(), drawn.begin(), drawn.end());
  const std::string whole = Decoded(tokenizer, all), begin = Decoded(tokenizer, prompt);
  return whole.starts_with(begin) ? whole.substr(begin.size()) : Decoded(tokenizer, drawn);
}

std::string JsonList(const Tokens& tokens) {
  std::string list;
  for (const int64_t token : tokens) list += (list.empty() ? "" : ", ") + std::to_string(token);
  return "[" + list + "]";
}

absl::Status Run(GenerateFlags& flags) {
  for (const std::string& path : flags.prompt_files) {
    APOGEE_ASSIGN_OR_RETURN(flags.prompts.emplace_back(), PromptOf(path));
  }
  if (flags.prompts.empty()) return InvalidArgument("give --prompt or --prompt-file");
  APOGEE_ASSIGN_OR_RETURN(const LanguageModel model,
                          LoadLanguageModel(flags.model, /*needs_tokenizer=*/true));
  std::vector<Tokens> prompts;
  for (const std::string& prompt : flags.prompts) {
    APOGEE_ASSIGN_OR_RETURN(prompts.emplace_back(), TokensOf(prompt, model));
  }
  nn::GenerateOptions& options = flags.options;
  APOGEE_RETURN_IF_ERROR(SetNewTokens(prompts, model.hf.max_tokens, options));
  if (!flags.no_stop) {
    APOGEE_ASSIGN_OR_RETURN(options.stop_tokens, StopTokensOf(flags.model, model.hf));
  }
  const std::vector<Tokens> drawn = nn::Generate(*model.hf.module, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string text = NewText(*model.tokenizer, prompts[i], drawn[i]);
    if (flags.json) {
      const bool stopped =
          !drawn[i].empty() && std::ranges::count(options.stop_tokens, drawn[i].back()) > 0;
      std::cout << "{\"prompt\": " << JsonQuoted(flags.prompts[i])
                << ", \"text\": " << JsonQuoted(text)
                << ", \"prompt_tokens\": " << JsonList(prompts[i])
                << ", \"tokens\": " << JsonList(drawn[i])
                << ", \"stopped\": " << (stopped ? "true" : "false") << "}\n";
    } else {
      if (i > 0) std::cout << "---\n";
      std::cout << PrintableLines(flags.prompts[i] + text) << "\n";
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  nn::GenerateOptions& options = flags->options;
  CLI::App* command =
      app.add_subcommand("generate", "Continue texts with the language model of a folder");
  command
      ->add_option("dir", flags->model.dir,
                   "A Hugging Face folder: config.json, weights, tokenizer.json")
      ->required();
  command->add_option("--prompt", flags->prompts, "A text to continue; repeat it for a batch")
      ->allow_extra_args(false);
  command->add_option("--prompt-file", flags->prompt_files, "A file with a text; also repeatable")
      ->allow_extra_args(false);
  command
      ->add_option("--max-new-tokens", options.max_new_tokens,
                   "The most tokens to add to a text; default: as many as the model has positions "
                   "for, but at most " +
                       std::to_string(kDefaultNewTokens))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  command->add_option("--temperature", options.temperature,
                      "0 takes the most likely token; 1 draws as the model says; below 1 likely "
                      "tokens become more likely. Default: 0");
  command->add_option("--top-k", options.top_k, "Draw from the k most likely tokens; default: all");
  command->add_option("--top-p", options.top_p,
                      "Draw from the most likely tokens that together have this probability; "
                      "default: 1");
  command->add_option("--seed", options.seed, "Of the draws")->capture_default_str();
  command->add_flag("--no-stop", flags->no_stop,
                    "Go on behind the end of a text (eos_token_id of generation_config.json or "
                    "config.json)");
  AddModelOptions(*command, flags->model);
  command->add_flag("--json", flags->json,
                    "A line of JSON for each prompt, with the tokens; text is the new text");
  command->footer(
      "Several texts are divided by lines of ---. Exit status: 0 done, 1 damaged files, 2 wrong "
      "use or bad input.");
  command->callback([flags, &exit_code] {
    const auto done = ErrorToStatus([&] { return Run(*flags); });
    const absl::Status status = done.ok() ? *done : done.status();
    exit_code = status.ok() ? 0 : ReportError("generate", status);
  });
}

}  // namespace apogee::tools
