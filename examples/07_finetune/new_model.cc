// SPDX-License-Identifier: Apache-2.0

// Makes a small model of random values as a Hugging Face folder, for trying 07_finetune without a
// download.
//
//   07_new_model --model-type qwen2 --out tiny
//   07_finetune --model tiny --data train.jsonl --out out --lr 1e-3
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "apogee/apogee.h"
#include "apogee/driver/command_line.h"
#include "apogee/driver/model_folder.h"

using namespace apogee;

namespace {

std::string Types() {
  std::string text;
  for (const std::string& type : driver::NewModelTypes()) text += (text.empty() ? "" : ", ") + type;
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::string type = "llama", out;
  uint64_t seed = 1;
  driver::CommandLine line("07_new_model",
                           "Makes a small model of random values as a Hugging Face folder.");
  line.AddText("--model-type", type, Types());
  line.AddText("--out", out, "The folder to make");
  line.AddSeed("--seed", seed, "Seed of the weights");
  const std::optional<int> stop = line.Parse(argc, argv, [&] {
    if (out.empty()) Throw("--out is needed: the folder to make");
  });
  if (stop) return *stop;
  try {
    driver::MakeNewModel(type, out, seed);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "07_new_model: %s\n", error.what());
    return 1;
  }
  std::printf("made %s: a %s of 2 layers, with a tokenizer of bytes\n", out.c_str(), type.c_str());
  return 0;
}
