// SPDX-License-Identifier: Apache-2.0

// --model: lets the user of a program choose the model by name, and its sizes.
//
//   driver::ModelFlags model;
//   model.Declare(line);                                          // after RunFlags::Declare
//   ... model.Settle(flags.block); ...                            // while the flags are checked
//   const std::unique_ptr<nn::Module> made = model.Make(256);     // on every rank
//
// A program adds its own models before Declare; --model then knows them:
//
//   model.registry.Add("gru", [](const driver::ModelSizes& sizes) -> std::unique_ptr<nn::Module> {
//     return std::make_unique<Gru>(sizes.vocab_size, sizes.dim);
//   });
#ifndef APOGEE_DRIVER_MODEL_FLAGS_H_
#define APOGEE_DRIVER_MODEL_FLAGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "apogee/core/text/name_table.h"
#include "apogee/driver/command_line.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/module.h"

namespace apogee::driver {

// The sizes of a language model: int64 tokens [batch, tokens] -> logits [batch, tokens,
// vocab_size].
struct ModelSizes {
  int64_t vocab_size = 256;  // of the tokenizer; 256: bytes
  int64_t block = 128;       // tokens of context
  int64_t layers = 4;
  int64_t heads = 6;
  int64_t dim = 192;
  double dropout = 0;                  // probability
  int64_t head_chunks = 0;             // of gpt2 and llama: nn::DecoderConfig::head_chunks
  bool recompute_activations = false;  // the same: nn::BlockConfig::recompute_activations
};

// Returns the model without values. Throws Error for sizes that it does not support.
using ModelFactory = std::function<std::unique_ptr<nn::Module>(const ModelSizes&)>;

struct ModelFlags {
  // Has the models of the library: gpt2, llama.
  ModelFlags();

  NameTable<ModelFactory> registry{"model"};
  std::string name = "gpt2";
  ModelSizes sizes;

  // Adds --model, --layers, --heads, --dim, --dropout, --head-chunks and --recompute-activations.
  void Declare(CommandLine& line);
  // `block`: tokens of context. Throws Error for an unknown name, for sizes that do not fit, and
  // for options that the model does not take.
  void Settle(int64_t block);

  // For a tokenizer of this size.
  std::unique_ptr<nn::Module> Make(int64_t vocab_size) const;
};

// For a program that trains a Llama only: adds --layers, --heads, --kv-heads, --dim and --hidden.
// The present values are the defaults. The number of tokens of context is RunFlags::block.
void DeclareLlamaFlags(CommandLine& line, nn::LlamaConfig& config);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_MODEL_FLAGS_H_
