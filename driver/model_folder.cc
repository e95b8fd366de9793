// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/model_folder.h"

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/driver/model_folder/partial_folder.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee::driver {
namespace {

using checkpoint::JoinPath;
using checkpoint::PathKind;

// What transformers' AutoTokenizer and generation read, as far as a folder has it.
constexpr const char* kCopied[] = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "generation_config.json",
                                   "tokenizer.model",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "vocab.txt",
                                   "chat_template.jinja"};
constexpr int64_t kMaxCopiedBytes = int64_t{1} << 30;

bool Exists(const std::string& path) {
  const auto kind = checkpoint::RealFileSystem()->KindOf(path);
  return kind.ok() && *kind != PathKind::kNothing;
}

nn::HfModel ReadConfig(const std::string& folder) {
  const std::string path = JoinPath(folder, "config.json");
  APOGEE_CHECK(Exists(path), folder, Exists(folder) ? " has no config.json" : " does not exist",
               "; give the folder of a Hugging Face model: config.json, weights as safetensors, "
               "tokenizer.json");
  const std::string json = ValueOrThrow(
      checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, nn::kMaxHfConfigBytes));
  // LoadPretrained gives the notices.
  return ValueOrThrow(nn::MakeHfModel(json, path, [](const std::string&) {}));
}

std::string TokenizerOf(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (Exists(JoinPath(folder, name))) return JoinPath(folder, name);
  }
  Throw(folder, " has no tokenizer.json and no tokenizer.model; add the model's tokenizer");
}

// Adds the copied files to the folder, and gives it its name.
absl::Status Complete(const std::string& from, const std::string& to) {
  checkpoint::FileSystem& files = *checkpoint::RealFileSystem();
  for (const char* name : kCopied) {
    if (!Exists(JoinPath(from, name))) continue;
    APOGEE_ASSIGN_OR_RETURN(const std::string text,
                            checkpoint::ReadTextFile(files, JoinPath(from, name), kMaxCopiedBytes));
    APOGEE_RETURN_IF_ERROR(checkpoint::WriteTextFile(files, JoinPath(PartialOf(to), name), text));
  }
  return PublishPartial(to);
}

}  // namespace

Corpus LoadDataFor(const std::string& folder, RunFlags& flags) {
  const nn::HfModel model = ReadConfig(folder);
  APOGEE_CHECK(model.task == nn::HfTask::kCausalLm, folder, " has a model of type ",
               model.model_type,
               ", which does not continue texts; give a causal language model, as GPT-2 or Llama");
  APOGEE_CHECK(flags.block <= model.max_tokens, "--block ", flags.block, " is longer than the ",
               model.max_tokens, " positions of ", folder, "; use --block ", model.max_tokens);
  flags.tokenizer = TokenizerOf(folder);
  if (const auto end = model.token_ids.find("eos_token_id");
      end != model.token_ids.end() && !end->second.empty()) {
    flags.end_of_text_id = end->second.front();
    APOGEE_CHECK(flags.end_of_text_id >= 0 && flags.end_of_text_id < model.vocab_size, folder,
                 "/config.json: eos_token_id ", flags.end_of_text_id, " is outside of [0, ",
                 model.vocab_size, "), the model's vocabulary");
  }
  Corpus corpus = ValueOrThrow(LoadCorpus(flags));
  try {
    data::CheckFits(*corpus.tokenizer, model.vocab_size);
  } catch (const Error& error) {
    Throw(folder, ": ", error.what());
  }
  return corpus;
}

void CheckNoFolder(const std::string& path) {
  if (Exists(path))
    Throw(path, " exists, and nothing is overwritten; move it, or choose another --out");
}

void SaveTrained(Booster& booster, const comm::World& world, const std::string& config_json,
                 const std::string& from, const std::string& to) {
  if (world.context()->is_dry()) return;
  if (world.rank() == 0) {
    CheckNoFolder(to);
    OkOrThrow(RemovePartial(to));
  }
  OkOrThrow(booster.save_model(PartialOf(to), {.config_json = config_json, .f32_masters = true}));
  if (world.rank() == 0) OkOrThrow(Complete(from, to));
}

}  // namespace apogee::driver
