// SPDX-License-Identifier: Apache-2.0

// The size of a Llama on the command line of a program.
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
