// SPDX-License-Identifier: Apache-2.0

// Generates text from a byte-level model.
//
//   std::string text = driver::Generate(model, context, "In the beginning", {.bytes = 400});
#ifndef APOGEE_DRIVER_GENERATE_H_
#define APOGEE_DRIVER_GENERATE_H_

#include <cstdint>
#include <string>

#include "apogee/nn/module.h"

namespace apogee::driver {

struct GenerateOptions {
  int64_t block = 128;  // context of the model
  int64_t bytes = 400;
  // Logits are divided by it; below 1 likely bytes become more likely.
  double temperature = 0.8;
  uint64_t seed = 1;
};

// Returns the prompt and `bytes` more bytes, each drawn from the model's distribution given the
// last `block` bytes: a pure function of the arguments. Leaves the model in evaluation mode.
std::string Generate(nn::Module& model, const ContextPtr& context, const std::string& prompt,
                     const GenerateOptions& options);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_GENERATE_H_
