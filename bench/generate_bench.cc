// SPDX-License-Identifier: Apache-2.0

// The speed of generation, with the key/value cache and without: a GPT-2 and a Llama of 12 layers
// of 768, one text, greedy. Prints one table. With a Hugging Face folder it prints one line of
// JSON, the speed with the cache and the tokens; bench/transformers_generate.py is the other side.
//
//   generate_bench --threads 2 --dtype f32
//   generate_bench --threads 2 --folder hub/gpt2
//
//   model  parameters  cached tokens/s  whole tokens/s  ratio
//   gpt2   124,439,808            35.2             0.9   39.1
//
// `cached` is one run of nn::Generate, prompt included. Without the cache each token takes a
// forward of the whole text. These are timed at some lengths, evenly spread over the text, and
// their mean stands for all. Threads spin while they wait for each other, as in `apogee generate`,
// because a step has many short loops. So there must be a free core for each.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/pretrained.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/generation/generate.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tensor/cpu/cpu_context.h"

using namespace apogee;

namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  int threads = 2;
  std::string dtype = "f32", folder;
  int64_t prompt = 16, tokens = 512, lengths = 8;
  bool quick = false;
};

std::unique_ptr<nn::Module> MakeModel(const std::string& name, const Settings& settings) {
  const int64_t positions = settings.prompt + settings.tokens;
  const int64_t dim = settings.quick ? 48 : 768, layers = settings.quick ? 2 : 12;
  if (name == "gpt2") {
    return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.vocab_size = settings.quick ? 500 : 50257,
                                                     .n_positions = positions,
                                                     .n_embd = dim,
                                                     .n_layer = layers,
                                                     .n_head = 12});
  }
  return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = settings.quick ? 500 : 32000,
                                                     .hidden_size = dim,
                                                     .intermediate_size = 8 * dim / 3,
                                                     .num_hidden_layers = layers,
                                                     .num_attention_heads = 12,
                                                     .num_key_value_heads = 12,
                                                     .max_position_embeddings = positions});
}

// Seconds of generating `tokens` tokens behind a prompt; `drawn`: these tokens, if not null.
double SecondsOf(nn::Module& model, int64_t prompt, int64_t tokens, bool use_cache,
                 std::vector<int64_t>* drawn = nullptr) {
  std::vector<int64_t> text;
  for (int64_t t = 0; t < prompt; ++t) text.push_back(t % 400);
  const Clock::time_point start = Clock::now();
  const std::vector<std::vector<int64_t>> rows =
      nn::Generate(model, {text}, {.max_new_tokens = tokens, .use_cache = use_cache});
  if (drawn != nullptr) *drawn = rows[0];
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void MeasureFolder(const Settings& settings) {
  const ContextPtr context = CpuContext({.num_threads = settings.threads});
  const nn::HfModel hf = ValueOrThrow(
      LoadPretrained(settings.folder, context, {.dtype = DTypeFromName(settings.dtype)}));
  SecondsOf(*hf.module, settings.prompt, 2, true);  // touches all weights
  std::vector<int64_t> drawn;
  const double seconds = SecondsOf(*hf.module, settings.prompt, settings.tokens, true, &drawn);
  std::printf("{\"tokens_per_s\": %.2f, \"tokens\": [",
              static_cast<double>(settings.tokens) / seconds);
  for (size_t i = 0; i < drawn.size(); ++i) {
    std::printf("%s%lld", i == 0 ? "" : ", ", static_cast<long long>(drawn[i]));
  }
  std::printf("]}\n");
}

void Measure(const std::string& name, const Settings& settings) {
  const ContextPtr context = CpuContext({.num_threads = settings.threads});
  const std::unique_ptr<nn::Module> model = MakeModel(name, settings);
  model->Initialize(context, {.seed = 1, .dtype = DTypeFromName(settings.dtype)});
  const auto tokens = static_cast<double>(settings.tokens);
  SecondsOf(*model, settings.prompt, 2, true);  // touches all weights
  const double cached = tokens / SecondsOf(*model, settings.prompt, settings.tokens, true);
  double seconds = 0;
  for (int64_t i = 0; i < settings.lengths; ++i) {
    const int64_t length = settings.prompt + (2 * i + 1) * settings.tokens / (2 * settings.lengths);
    if (i == 0) SecondsOf(*model, length, 1, false);
    seconds += SecondsOf(*model, length, 1, false) / static_cast<double>(settings.lengths);
  }
  std::printf("%-5s  %11s  %15.1f  %14.2f  %5.1f\n", name.c_str(),
              FormatThousands(model->num_parameters()).c_str(), cached, 1 / seconds,
              cached * seconds);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Speed of generation with and without the key/value cache.");
  app.add_option("--threads", settings.threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--dtype", settings.dtype, "Of weights and activations")
      ->check(CLI::IsMember({"f32", "bf16", "f64"}))
      ->capture_default_str();
  app.add_option("--prompt", settings.prompt, "Tokens of the prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", settings.tokens, "New tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--folder", settings.folder, "A Hugging Face folder, instead of the two models");
  app.add_flag("--quick", settings.quick, "Tiny models and 8 tokens, to see that it runs");
  CLI11_PARSE(app, argc, argv);
  if (settings.quick) settings.tokens = 8;
  settings.lengths = std::min(settings.lengths, settings.tokens);
  try {
    if (!settings.folder.empty()) {
      MeasureFolder(settings);
      return 0;
    }
    std::printf("%-5s  %11s  %15s  %14s  %5s\n", "model", "parameters", "cached tokens/s",
                "whole tokens/s", "ratio");
    for (const char* name : {"gpt2", "llama"}) Measure(name, settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
