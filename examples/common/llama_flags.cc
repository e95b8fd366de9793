// SPDX-License-Identifier: Apache-2.0

#include "apogee/examples/common/llama_flags.h"

#include <CLI/CLI.hpp>
#include <string>

#include "apogee/examples/common/command_line.h"

void DeclareLlamaFlags(CLI::App& app, apogee::nn::LlamaConfig& model) {
  const CLI::Validator count = Count(1);
  const auto add = [&](const std::string& name, int64_t& value, const std::string& help) {
    app.add_option(name, value, help)->group("Model")->capture_default_str()->check(count);
  };
  add("--layers", model.num_hidden_layers, "Transformer blocks");
  add("--heads", model.num_attention_heads, "Attention heads");
  add("--kv-heads", model.num_key_value_heads, "Key-value heads; divides --heads");
  add("--dim", model.hidden_size, "Width; an even multiple of --heads");
  add("--hidden", model.intermediate_size, "Width inside the feed-forward part");
  add("--block", model.max_position_embeddings, "Bytes of context");
}
