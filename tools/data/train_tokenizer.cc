// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/data/corpus_sources.h"
#include "apogee/data/token_files/output_file.h"
#include "apogee/data/tokenizer/bpe/train_bpe.h"
#include "apogee/tools/data/commands.h"

namespace apogee::tools {
namespace {

struct TrainFlags {
  std::vector<std::string> paths;
  std::string output;
  data::TrainBpeOptions options;
};

absl::Status Train(const TrainFlags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  APOGEE_RETURN_IF_ERROR(data::CheckFree(flags.output));
  APOGEE_ASSIGN_OR_RETURN(const data::TextSource source, flags.paths.empty()
                                                             ? data::ReadDefaultText()
                                                             : data::ReadTextFiles(flags.paths));
  if (!source.notice.empty()) std::fprintf(stderr, "%s\n", Printable(source.notice).c_str());
  APOGEE_ASSIGN_OR_RETURN(const data::TrainedBpe trained,
                          data::TrainBpe(source.bytes, flags.options));
  APOGEE_ASSIGN_OR_RETURN(data::OutputFile file, data::OutputFile::Open(flags.output, 0));
  APOGEE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(trained.json))));
  APOGEE_RETURN_IF_ERROR(file.Sync());
  APOGEE_RETURN_IF_ERROR(file.Publish());
  APOGEE_RETURN_IF_ERROR(data::SyncFolderOf(flags.output));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %s tokens from %s, in %.1f s\n", Printable(flags.output).c_str(),
              FormatThousands(trained.vocab_size).c_str(), Printable(source.description).c_str(),
              seconds.count());
  if (trained.vocab_size < flags.options.vocab_size) {
    std::printf("No other pair occurs %lld times, so there are fewer tokens than %s\n",
                static_cast<long long>(flags.options.min_count),
                FormatThousands(flags.options.vocab_size).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainTokenizerCommand(CLI::App& data, int& exit_code) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command =
      data.add_subcommand("train-tokenizer", "Make a tokenizer.json of byte-level BPE from texts");
  command->add_option("files", flags->paths,
                      "Texts and folders of texts; without any, the default text of the examples");
  command->add_option("--output", flags->output, "The tokenizer.json to write")->required();
  command->add_option("--vocab-size", flags->options.vocab_size,
                      "Tokens: 256 bytes, merged and special ones (default: 4096)");
  command->add_option("--pattern", flags->options.pattern,
                      "How texts are divided: gpt2 (default), llama3 or qwen2");
  command->add_option("--special", flags->options.special_tokens,
                      "Special tokens; the default is <|endoftext|>");
  command->add_option("--min-count", flags->options.min_count,
                      "A pair that is rarer does not become a token (default: 2)");
  command->callback([flags, &exit_code] {
    const absl::Status status = Train(*flags);
    exit_code = status.ok() ? 0 : ReportDataError("train-tokenizer", status);
  });
}

}  // namespace apogee::tools
