// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/generate.h"

#include <vector>

#include "apogee/nn/generation/kv_cache.h"

namespace apogee::driver {

std::string Generate(Booster& booster, nn::Module& model, const data::Tokenizer& tokenizer,
                     const std::string& prompt, const GenerateOptions& options) {
  std::vector<int32_t> tokens = options.prefix;
  tokenizer.Encode(prompt, tokens);
  APOGEE_CHECK(!tokens.empty(), "generate: the prompt has no tokens; give at least a word");
  const std::vector<std::vector<int64_t>> drawn = booster.generate(
      {std::vector<int64_t>(tokens.begin(), tokens.end())}, model,
      {.max_new_tokens = options.tokens,
       .temperature = options.temperature,
       .stop_tokens = options.end_of_text < 0 ? std::vector<int64_t>{}
                                              : std::vector<int64_t>{options.end_of_text},
       .seed = options.seed,
       .max_tokens = options.block,
       .slide_window = true,
       .use_cache = nn::KvCacheProblem(model).empty(),
       .window_multiple = options.block});  // sequence parallelism divides the block
  for (const int64_t token : drawn[0]) {
    // Ids that the tokenizer lacks, the padding of the model's vocabulary, stand for no text.
    if (token < tokenizer.vocab_size()) tokens.push_back(static_cast<int32_t>(token));
  }
  const bool has_marks = !options.prefix.empty() || options.end_of_text >= 0;
  return tokenizer.Decode(tokens, /*skip_special=*/has_marks);
}

}  // namespace apogee::driver
