// SPDX-License-Identifier: Apache-2.0

// A recurrent language model, and its plan for tensor parallelism.
#ifndef APOGEE_EXAMPLES_06_OWN_MODEL_RECURRENT_MODEL_H_
#define APOGEE_EXAMPLES_06_OWN_MODEL_RECURRENT_MODEL_H_

#include <cstdint>
#include <memory>

#include "apogee/apogee.h"

namespace own_model {

using namespace apogee;

// Tokens [samples, tokens] -> logits [samples, tokens, words].
class RecurrentLm : public nn::Sequential {
 public:
  RecurrentLm(int64_t words, int64_t dim)
      : Sequential({{"embed", std::make_shared<nn::Embedding>(words, dim)},
                    {"gru1", std::make_shared<nn::Gru>(dim, dim)},
                    {"gru2", std::make_shared<nn::Gru>(dim, dim)},
                    {"norm", std::make_shared<nn::LayerNorm>(dim)},
                    {"head", std::make_shared<nn::Linear>(dim, words)}}) {
    SetInit("head.weight", nn::Init::Normal(0, 0.02));
  }
};

// Divides the units of the GRUs and the words among the ranks.
inline nn::parallel::ParallelPlan RecurrentPlan() {
  using enum nn::parallel::ParallelStyle;
  return {.name = "recurrent language model",
          .rules = {{.pattern = "embed", .style = kVocabulary},
                    {.pattern = "gru*", .style = kColumnGather},
                    {.pattern = "head", .style = kVocabulary}},
          .output_module = "head"};
}

}  // namespace own_model

#endif  // APOGEE_EXAMPLES_06_OWN_MODEL_RECURRENT_MODEL_H_
