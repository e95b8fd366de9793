// SPDX-License-Identifier: Apache-2.0

// The flags of a Llama's sizes.
//
//   nn::LlamaConfig config;
//   driver::DeclareLlamaFlags(line, config);       // --layers, --heads, --kv-heads, --dim, --hidden
#ifndef APOGEE_DRIVER_LLAMA_FLAGS_H_
#define APOGEE_DRIVER_LLAMA_FLAGS_H_

#include "apogee/driver/command_line.h"
#include "apogee/nn/models/llama.h"

namespace apogee::driver {

// The present values are the defaults. The number of tokens of context is RunFlags::block.
void DeclareLlamaFlags(CommandLine& line, nn::LlamaConfig& config);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_LLAMA_FLAGS_H_
