// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/language_model.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "apogee/booster/lora/adapter_files.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/nn/generation/generate.h"
#include "apogee/nn/models/hf_fields.h"
#include "apogee/tensor/make_context.h"

namespace apogee::tools {
namespace {

absl::StatusOr<data::TokenizerPtr> TokenizerOf(const LanguageModelFlags& flags) {
  if (!flags.tokenizer.empty()) return data::LoadTokenizer(flags.tokenizer);
  const std::string path = checkpoint::JoinPath(flags.dir, "tokenizer.json");
  absl::StatusOr<data::TokenizerPtr> tokenizer = data::LoadTokenizer(path);
  if (!absl::IsNotFound(tokenizer.status())) return tokenizer;
  return NotFound(flags.dir, " has no tokenizer.json; give the model's tokenizer with --tokenizer");
}

}  // namespace

void AddModelOptions(CLI::App& command, LanguageModelFlags& flags, const std::string& note) {
  command.add_option("--tokenizer", flags.tokenizer,
                     "tokenizer.json, tiktoken file, SentencePiece model, or byte; default: the "
                     "folder's tokenizer.json" +
                         note);
  command.add_option("--adapter", flags.adapter,
                     "Folder of an adapter of the model, of 07_finetune --lora-rank or PEFT");
  command.add_option("--dtype", flags.dtype, "Of weights and activations")
      ->check(CLI::IsMember({"f32", "bf16", "f64"}))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "CPU threads; default: one per core")
      ->check(CLI::Range(1, kMaxThreads));
  command.add_option("--device", flags.device, "cpu, cuda or cuda:N")
      ->check([](const std::string& name) { return Message(ParseDevice(name).status()); });
}

absl::StatusOr<LanguageModel> LoadLanguageModel(const LanguageModelFlags& flags,
                                                bool needs_tokenizer) {
  LanguageModel model;
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(flags.device));
  const int threads = flags.threads > 0 ? flags.threads : ShareOfCores(1);
  APOGEE_ASSIGN_OR_RETURN(model.context, MakeContext(device.For(0), threads));
  APOGEE_ASSIGN_OR_RETURN(
      model.hf, LoadPretrained(flags.dir, model.context, {.dtype = DTypeFromName(flags.dtype)}));
  if (model.hf.task != nn::HfTask::kCausalLm) {
    return InvalidArgument(flags.dir, ": a ", model.hf.model_type,
                           " is no causal language model, which predicts the next token");
  }
  if (!flags.adapter.empty()) {
    APOGEE_RETURN_IF_ERROR(AddPretrainedLora(*model.hf.module, flags.adapter, "default", {},
                                             checkpoint::RealFileSystem())
                               .status());
  }
  if (!needs_tokenizer && flags.tokenizer.empty()) return model;
  APOGEE_ASSIGN_OR_RETURN(model.tokenizer, TokenizerOf(flags));
  const auto fits = ErrorToStatus([&] {
    data::CheckFits(*model.tokenizer, model.hf.vocab_size);
    return true;
  });
  if (!fits.ok()) return InvalidArgument(flags.dir, ": ", Message(fits.status()));
  return model;
}

absl::StatusOr<std::vector<int64_t>> StopTokensOf(const LanguageModelFlags& flags,
                                                  const nn::HfModel& model) {
  const std::string path = checkpoint::JoinPath(flags.dir, "generation_config.json");
  const absl::StatusOr<std::string> json =
      checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, nn::kMaxHfConfigBytes);
  nn::TokenIds ids = model.token_ids;
  if (json.ok()) {
    APOGEE_ASSIGN_OR_RETURN(nn::HfFields fields, nn::HfFields::Parse(*json, path));
    const nn::TokenIds own = fields.ReadTokenIds();
    APOGEE_RETURN_IF_ERROR(fields.status());
    if (own.contains("eos_token_id")) ids = own;
  } else if (!absl::IsNotFound(json.status())) {
    return json.status();
  }
  return nn::StopTokensOf(ids);
}

}  // namespace apogee::tools
