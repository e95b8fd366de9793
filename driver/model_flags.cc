// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/model_flags.h"

#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/nn/models/gpt2.h"

namespace apogee::driver {
namespace {

void CheckHeads(const ModelSizes& sizes) {
  if (sizes.dim % sizes.heads == 0) return;
  Throw("--dim must be a multiple of --heads, got ", sizes.dim, " and ", sizes.heads);
}

std::unique_ptr<nn::Module> MakeGpt2(const ModelSizes& sizes) {
  CheckHeads(sizes);
  return std::make_unique<nn::Gpt2>(
      nn::Gpt2Config{.vocab_size = sizes.vocab_size,
                     .n_positions = sizes.block,
                     .n_embd = sizes.dim,
                     .n_layer = sizes.layers,
                     .n_head = sizes.heads,
                     .dropout = sizes.dropout,
                     .recompute_activations = sizes.recompute_activations,
                     .head_chunks = sizes.head_chunks});
}

std::unique_ptr<nn::Module> MakeLlama(const ModelSizes& sizes) {
  CheckHeads(sizes);
  if (sizes.dropout > 0) {
    Throw("--dropout has no effect with --model llama, which has no dropout; leave the flag out");
  }
  // The width of a gated feed-forward part that has the parameters of an ungated one with 4 * dim.
  const int64_t hidden = (8 * sizes.dim / 3 + 7) / 8 * 8;
  return std::make_unique<nn::Llama>(
      nn::LlamaConfig{.vocab_size = sizes.vocab_size,
                      .hidden_size = sizes.dim,
                      .intermediate_size = hidden,
                      .num_hidden_layers = sizes.layers,
                      .num_attention_heads = sizes.heads,
                      .num_key_value_heads = sizes.heads,
                      .max_position_embeddings = sizes.block,
                      .recompute_activations = sizes.recompute_activations,
                      .head_chunks = sizes.head_chunks});
}

}  // namespace

ModelFlags::ModelFlags() {
  registry.Add("gpt2", &MakeGpt2);
  registry.Add("llama", &MakeLlama);
}

void ModelFlags::Declare(CommandLine& line) {
  line.Group("Model");
  line.AddText("--model", name, JoinTexts(registry.names(), ", "));
  line.AddCount("--layers", sizes.layers, "Transformer blocks");
  line.AddCount("--heads", sizes.heads, "Attention heads");
  line.AddCount("--dim", sizes.dim, "Width; of gpt2 and llama a multiple of --heads");
  line.AddNumber("--dropout", sizes.dropout, "Dropout probability, in [0, 1)", 0, 1);
  line.AddCount("--head-chunks", sizes.head_chunks,
                "Of gpt2 and llama: compute logits and loss over so many chunks of tokens; 0: all "
                "logits at once",
                0);
  line.AddSwitch("--recompute-activations", sizes.recompute_activations,
                 "Of gpt2 and llama: compute results of norms and activation functions again in "
                 "backward; the results are the same");
}

void ModelFlags::Settle(int64_t block) {
  sizes.block = block;
  const absl::StatusOr<const ModelFactory*> found = registry.Find(name);
  if (!found.ok()) Throw("--model: ", Message(found.status()));
  const std::unique_ptr<nn::Module> made = Make(sizes.vocab_size);
  const auto* const decoder = dynamic_cast<const nn::Decoder*>(made.get());
  const auto takes = [&](const char* flag, bool given, bool taken) {
    if (given && !taken) Throw(flag, " has no effect with --model ", name, "; leave the flag out");
  };
  takes("--head-chunks", sizes.head_chunks > 0,
        decoder != nullptr && decoder->decoder_config().head_chunks == sizes.head_chunks);
  takes("--recompute-activations", sizes.recompute_activations,
        decoder != nullptr && decoder->decoder_config().block.recompute_activations);
}

std::unique_ptr<nn::Module> ModelFlags::Make(int64_t vocab_size) const {
  ModelSizes all = sizes;
  all.vocab_size = vocab_size;
  return (*ValueOrThrow(registry.Find(name)))(all);
}

void DeclareLlamaFlags(CommandLine& line, nn::LlamaConfig& config) {
  line.Group("Model");
  line.AddCount("--layers", config.num_hidden_layers, "Transformer blocks");
  line.AddCount("--heads", config.num_attention_heads, "Attention heads");
  line.AddCount("--kv-heads", config.num_key_value_heads, "Key-value heads; divides --heads");
  line.AddCount("--dim", config.hidden_size, "Width; an even multiple of --heads");
  line.AddCount("--hidden", config.intermediate_size, "Width inside the feed-forward part");
}

}  // namespace apogee::driver
