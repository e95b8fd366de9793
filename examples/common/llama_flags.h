// SPDX-License-Identifier: Apache-2.0

// Command-line flags for the size of a Llama.
//
//   DeclareLlamaFlags(app, flags.model);
#ifndef APOGEE_EXAMPLES_COMMON_LLAMA_FLAGS_H_
#define APOGEE_EXAMPLES_COMMON_LLAMA_FLAGS_H_

#include "apogee/nn/models/llama.h"

namespace CLI {
class App;
}  // namespace CLI

// Adds --layers, --heads, --kv-heads, --dim, --hidden and --block.
void DeclareLlamaFlags(CLI::App& app, apogee::nn::LlamaConfig& model);

#endif  // APOGEE_EXAMPLES_COMMON_LLAMA_FLAGS_H_
