// SPDX-License-Identifier: Apache-2.0

// Configurations of models that are small enough for finite differences, and a check with these.
//
//   Gpt2 model(TinyGpt2());
//   CheckModelGradients(model, tokens, targets);  // after Initialize, in f64
#ifndef APOGEE_TESTS_NN_TINY_MODELS_H_
#define APOGEE_TESTS_NN_TINY_MODELS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"

namespace apogee::nn {
namespace module_test {

inline Gpt2Config TinyGpt2() {
  return {.vocab_size = 17, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3};
}
inline LlamaConfig TinyLlama() {
  return {.vocab_size = 17,
          .hidden_size = 16,
          .intermediate_size = 20,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 8};
}

// The whole model against finite differences: composition, tying, residuals.
template <typename Model>
void CheckModelGradients(Model& model, const Tensor& tokens, const Tensor& targets) {
  const CrossEntropyLoss criterion;
  autograd::Backward(criterion(model(tokens), targets));
  for (const ParameterPtr& parameter : model.Parameters()) {
    const std::vector<double> grad = parameter->grad().ToVector<double>();
    double* x = parameter->data().template data<double>();
    double scale = 1e-3;
    for (double g : grad) scale = std::max(scale, std::abs(g));
    for (size_t i = 0; i < grad.size(); i += 1 + grad.size() / 7) {
      autograd::NoGradGuard no_grad;
      const double original = x[i], h = 1e-5;
      x[i] = original + h;
      const double up = criterion(model(tokens), targets).Item();
      x[i] = original - h;
      const double down = criterion(model(tokens), targets).Item();
      x[i] = original;
      ASSERT_NEAR(grad[i], (up - down) / (2 * h), 1e-5 * scale)
          << parameter->name() << "[" << i << "]";
    }
  }
}

}  // namespace module_test
}  // namespace apogee::nn

#endif  // APOGEE_TESTS_NN_TINY_MODELS_H_
