// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/llama_flags.h"

namespace apogee::driver {

void DeclareLlamaFlags(CommandLine& line, nn::LlamaConfig& config) {
  line.Group("Model");
  line.AddCount("--layers", config.num_hidden_layers, "Transformer blocks");
  line.AddCount("--heads", config.num_attention_heads, "Attention heads");
  line.AddCount("--kv-heads", config.num_key_value_heads, "Key-value heads; divides --heads");
  line.AddCount("--dim", config.hidden_size, "Width; an even multiple of --heads");
  line.AddCount("--hidden", config.intermediate_size, "Width inside the feed-forward part");
}

}  // namespace apogee::driver
