// SPDX-License-Identifier: Apache-2.0

// Generates text from a language model that is being trained.
//
//   std::string text =
//       driver::Generate(booster, boosted.model, tokenizer, "In the beginning", {.tokens = 400});
#ifndef APOGEE_DRIVER_GENERATE_H_
#define APOGEE_DRIVER_GENERATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/data/tokenizer/tokenizer.h"

namespace apogee::driver {

struct GenerateOptions {
  int64_t block = 128;  // context of the model
  int64_t tokens = 400;
  // Logits are divided by it; below 1 likely tokens become more likely.
  double temperature = 0.8;
  uint64_t seed = 1;
  // Before the prompt; not in the text.
  std::vector<int32_t> prefix = {};
  int32_t end_of_text = -1;  // ends the text; -1: none does
};

// Returns the prompt and the text of at most `tokens` more tokens, each drawn from the model's
// distribution given the last `block` tokens: a pure function of the arguments. A model that can
// uses a key/value cache as long as the text fits into `block`. Collective over the ranks that run
// the model together (Booster::generate). Throws Error for a prompt without tokens.
std::string Generate(Booster& booster, nn::Module& model, const data::Tokenizer& tokenizer,
                     const std::string& prompt, const GenerateOptions& options);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_GENERATE_H_
