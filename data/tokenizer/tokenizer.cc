// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/tokenizer.h"

#include "apogee/core/error.h"

namespace apogee::data {

void CheckFits(const Tokenizer& tokenizer, int64_t model_vocab_size) {
  APOGEE_CHECK(tokenizer.vocab_size() <= model_vocab_size, "the tokenizer (",
               tokenizer.description(), ") has ids up to ", tokenizer.vocab_size() - 1,
               ", but the model's vocabulary has ", model_vocab_size,
               "; make the model for the tokenizer, or take the model's own tokenizer");
}

}  // namespace apogee::data
