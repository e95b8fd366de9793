// SPDX-License-Identifier: Apache-2.0

// Trains a small GPT-2 or Llama on a synthetic text and writes its weights before and after, f32
// masters where there are any, and the text. scripts/torch_precision.py runs it in several
// precisions and compares the updates with each other and with PyTorch's.
//
//   precision_bench --model llama --optimizer adamw --precision bf16 --out /tmp/run.safetensors
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/adam/lamb.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/make_context.h"

using namespace apogee;

namespace {

constexpr int64_t kVocab = 512, kBlock = 64, kBatch = 8, kDim = 128, kLayers = 4, kHeads = 4;

struct Flags {
  std::string model = "gpt2", optimizer = "adamw", precision = "f32", out;
  int64_t steps = 25;
  int threads = 2;
  uint64_t seed = 1;
  bool bf16_residual = false;
  std::vector<std::string> keep_f32;
};

// A token is followed by one of four, so that there is something to learn.
std::vector<int64_t> Text(int64_t steps, uint64_t seed) {
  std::vector<int64_t> text;
  const PhiloxKey key = MakeKey(seed, "text");
  for (uint64_t i = 0; i < static_cast<uint64_t>(steps * kBatch * (kBlock + 1)); ++i) {
    const int64_t last = text.empty() ? 0 : text.back();
    text.push_back((5 * last + 17 + 31 * (Philox(key, i)[0] % 4)) % kVocab);
  }
  return text;
}

std::unique_ptr<nn::Module> MakeModel(const std::string& name) {
  if (name == "gpt2") {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = kVocab,
                                                     .n_positions = kBlock,
                                                     .n_embd = kDim,
                                                     .n_layer = kLayers,
                                                     .n_head = kHeads});
  }
  return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                     .hidden_size = kDim,
                                                     .intermediate_size = 3 * kDim,
                                                     .num_hidden_layers = kLayers,
                                                     .num_attention_heads = kHeads,
                                                     .num_key_value_heads = kHeads / 2,
                                                     .max_position_embeddings = kBlock});
}

// The same options are in scripts/torch_precision.py.
std::unique_ptr<optim::Optimizer> MakeOptimizer(const std::string& name,
                                                const std::vector<nn::ParameterPtr>& parameters) {
  if (name == "adamw") {
    return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 1e-3});
  }
  if (name == "sgd") {
    return std::make_unique<optim::Sgd>(parameters, optim::SgdOptions{.lr = 0.03, .momentum = 0.9});
  }
  return std::make_unique<optim::Lamb>(parameters,
                                       optim::LambOptions{.lr = 2e-3, .weight_decay = 0.01});
}

using Named = std::vector<std::pair<std::string, Tensor>>;

void Write(const std::string& path, const Named& tensors) {
  std::vector<checkpoint::FileEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({.name = name,
                       .dtype = tensor.dtype() == DType::kI64 ? "I64" : "F64",
                       .shape = {tensor.shape().dims().begin(), tensor.shape().dims().end()},
                       .data = {static_cast<const std::byte*>(tensor.raw()),
                                static_cast<size_t>(tensor.bytes())}});
  }
  ValueOrThrow(checkpoint::WriteSafetensors(*checkpoint::RealFileSystem(), path, entries));
}

void Run(const Flags& flags) {
  const auto context = ValueOrThrow(MakeContext({}, flags.threads));
  const Precision precision = ValueOrThrow(ParsePrecision(flags.precision));
  const std::unique_ptr<nn::Module> model = MakeModel(flags.model);
  model->Initialize(context, {.seed = flags.seed});  // in f32 for all, so that all begin alike
  Named tensors;
  // The loss does not depend on the bias of a key: its gradient is rounding error, which AdamW and
  // LAMB turn into full updates.
  for (const nn::ParameterPtr& parameter : model->Parameters()) {
    if (parameter->name().ends_with("c_attn.bias")) parameter->set_requires_grad(false);
  }
  for (const nn::ParameterPtr& parameter : model->Parameters()) {
    tensors.emplace_back("start." + parameter->name(), parameter->data().To(DType::kF64));
  }
  const auto optimizer = MakeOptimizer(flags.optimizer, model->Parameters());
  SingleRankPlugin plugin(
      {.precision = precision, .f32_residual = !flags.bf16_residual, .keep_f32 = flags.keep_f32});
  Booster booster(plugin);
  Boosted boosted = booster.boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()});
  const std::vector<int64_t> text = Text(flags.steps, flags.seed);
  const Tensor tokens =
      Tensor::FromVector<int64_t>(text, {flags.steps, kBatch, kBlock + 1}, context);
  double loss_value = 0;
  for (int64_t step = 0; step < flags.steps; ++step) {
    const Tensor batch = tokens.Slice(0, step, 1).View({kBatch, kBlock + 1});
    const Tensor loss = boosted.criterion(boosted.model(batch.Slice(1, 0, kBlock).Contiguous()),
                                          batch.Slice(1, 1, kBlock).Contiguous());
    booster.backward(loss, boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    loss_value = loss.Item();
  }
  for (optim::ParamView& view : optimizer->views()) {
    const Tensor end = view.trainable() ? view.master() : view.value();
    tensors.emplace_back("end." + view.name(), end.To(DType::kF64));
  }
  tensors.emplace_back("tokens", tokens);
  Write(flags.out, tensors);
  std::printf("%s %s %s: loss %.9g after %lld steps\n", flags.model.c_str(),
              flags.optimizer.c_str(), flags.precision.c_str(), loss_value,
              static_cast<long long>(flags.steps));
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("The weights of a small model before and after some steps, in one precision.");
  app.add_option("--model", flags.model)->check(CLI::IsMember({"gpt2", "llama"}));
  app.add_option("--optimizer", flags.optimizer)->check(CLI::IsMember({"adamw", "sgd", "lamb"}));
  app.add_option("--precision", flags.precision, "f64, f32 or bf16");
  app.add_option("--seed", flags.seed);
  app.add_flag("--bf16-residual", flags.bf16_residual);
  app.add_option("--keep-f32", flags.keep_f32, "Patterns of modules");
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber);
  app.add_option("--threads", flags.threads)->check(CLI::PositiveNumber);
  app.add_option("--out", flags.out, "A safetensors file")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    Run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "precision_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
