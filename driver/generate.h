// SPDX-License-Identifier: Apache-2.0

// Generates text from a language model.
//
//   std::string text = driver::Generate(model, tokenizer, context, "In the beginning",
//                                      {.tokens = 400});
#ifndef APOGEE_DRIVER_GENERATE_H_
#define APOGEE_DRIVER_GENERATE_H_

#include <cstdint>
#include <string>

#include "apogee/data/tokenizer/tokenizer.h"
#include "apogee/nn/module.h"

namespace apogee::driver {

struct GenerateOptions {
  int64_t block = 128;  // context of the model
  int64_t tokens = 400;
  // Logits are divided by it; below 1 likely tokens become more likely.
  double temperature = 0.8;
  uint64_t seed = 1;
};

// Returns the prompt and the text of `tokens` more tokens, each drawn from the model's distribution
// given the last `block` tokens: a pure function of the arguments. Leaves the model in evaluation
// mode. Throws Error for a prompt without tokens.
std::string Generate(nn::Module& model, const data::Tokenizer& tokenizer, const ContextPtr& context,
                     const std::string& prompt, const GenerateOptions& options);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_GENERATE_H_
