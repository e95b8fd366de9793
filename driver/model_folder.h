// SPDX-License-Identifier: Apache-2.0

// A Hugging Face folder that a program goes on training: the data through its tokenizer, and the
// folder that the trained model becomes.
//
//   const Corpus corpus = LoadDataFor("llama", flags);                          // before the ranks
//   nn::HfModel hf = ValueOrThrow(LoadPretrained("llama", context));            // on every rank
//   ... boost, train ...
//   SaveTrained(booster, world, hf.config_json, /*from=*/"llama", /*to=*/"out/model");
#ifndef APOGEE_DRIVER_MODEL_FOLDER_H_
#define APOGEE_DRIVER_MODEL_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/comm/launch.h"
#include "apogee/driver/corpus.h"
#include "apogee/driver/run_flags.h"

namespace apogee::driver {

// Loads flags.data, of which it sets the tokenizer and the end of a text to those of the folder
// (tokenizer.json, else tokenizer.model; the first "eos_token_id" of config.json). Throws Error for
// a folder without config.json or tokenizer, for a model that is no causal language model, for a
// block longer than its positions, for a tokenizer with more ids than its vocabulary, and as
// LoadCorpus. Reads no weights.
Corpus LoadDataFor(const std::string& folder, RunFlags& flags);

// Makes the folder `path` with a small model of random values, for trying a program without a
// download: 2 layers of 64 dims, 256 positions, and a tokenizer whose tokens are the 256 bytes and
// "<|endoftext|>". The transformers library opens it. `path` is complete or absent. Throws Error
// for a model type without a small model (NewModelTypes), and if `path` exists or cannot be
// written.
void MakeNewModel(const std::string& model_type, const std::string& path, uint64_t seed = 1);
// Sorted: every causal language model of nn::HfModelTypes.
std::vector<std::string> NewModelTypes();

// Throws Error if there is something at `path`, the folder that SaveTrained will make.
void CheckNoFolder(const std::string& path);

// Saves the model with f32 masters where the optimizer has them, so that the transformers library
// opens `to`: with `config_json`, and the files of `from` that belong to the tokenizer and to
// generation. `to` is complete or absent. Collective. Throws Error if it exists, and if it cannot
// be written.
void SaveTrained(Booster& booster, const comm::World& world, const std::string& config_json,
                 const std::string& from, const std::string& to);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_MODEL_FOLDER_H_
