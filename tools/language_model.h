// SPDX-License-Identifier: Apache-2.0

// A language model of a Hugging Face folder with its tokenizer, for `apogee generate` and
// `apogee evaluate`.
//
//   APOGEE_ASSIGN_OR_RETURN(const LanguageModel model, LoadLanguageModel({.dir = "hub/gpt2"}));
//   Tensor logits = (*model.hf.module)(tokens);
#ifndef APOGEE_TOOLS_LANGUAGE_MODEL_H_
#define APOGEE_TOOLS_LANGUAGE_MODEL_H_

#include <string>
#include <vector>

#include "apogee/booster/pretrained.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace apogee::tools {

struct LanguageModelFlags {
  std::string dir;
  std::string tokenizer = {};  // "": the folder's tokenizer.json
  std::string adapter = {};    // a folder of PEFT; "": none
  std::string dtype = "f32";
  std::string device = "cpu";
  int threads = 0;  // 0: one per core
};

// Adds --tokenizer, --adapter, --dtype, --threads and --device. `note` ends the help of
// --tokenizer.
void AddModelOptions(CLI::App& command, LanguageModelFlags& flags, const std::string& note = "");

struct LanguageModel {
  nn::HfModel hf;
  ContextPtr context;
  data::TokenizerPtr tokenizer;  // null if it was not asked for
};

// The tokenizer is that of the flags or of the folder. Without needs_tokenizer only that of the
// flags is loaded. Besides the errors of LoadPretrained: NotFound if there is no tokenizer,
// InvalidArgument for a model that is no causal language model, and for a tokenizer with ids that
// the model lacks.
absl::StatusOr<LanguageModel> LoadLanguageModel(const LanguageModelFlags& flags,
                                                bool needs_tokenizer);

// The ids that end a text: those of generation_config.json or, without that file or its
// "eos_token_id", of config.json.
absl::StatusOr<std::vector<int64_t>> StopTokensOf(const LanguageModelFlags& flags,
                                                  const nn::HfModel& model);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_LANGUAGE_MODEL_H_
