// SPDX-License-Identifier: Apache-2.0

// A trained GPT-2 that Booster::save_model wrote computes in PyTorch, where Python has it, what it
// computes here: scripts/torch_gpt2.py.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace torch_gpt2_test {

using apogee::testing::TempDir;
using Json = nlohmann::json;

constexpr int64_t kBatch = 2, kBlock = 8;
constexpr int64_t kVocab = 5000;  // more than one file of 1 MB

// Consecutive rows of `width` numbers.
Json Rows(const std::vector<double>& values, int64_t width) {
  Json rows = Json::array();
  for (auto at = values.begin(); at != values.end(); at += width) {
    rows.push_back(std::vector<double>(at, at + width));
  }
  return rows;
}

std::vector<int64_t> Tokens(int64_t first) {
  std::vector<int64_t> tokens(kBatch * kBlock);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = (first + 1237 * static_cast<int64_t>(i)) % kVocab;
  }
  return tokens;
}

Json OfTokens(const std::vector<int64_t>& tokens) {
  Json rows = Json::array();
  for (auto at = tokens.begin(); at != tokens.end(); at += kBlock) {
    rows.push_back(std::vector<int64_t>(at, at + kBlock));
  }
  return rows;
}

// Trains, so that no bias is 0 and no scale 1, saves, and writes what the model computes then.
void TrainAndSave(DType dtype, bool tied, const std::string& folder, const std::string& batch) {
  nn::Gpt2 model({.vocab_size = kVocab,
                  .n_positions = kBlock + 2,
                  .n_embd = 64,
                  .n_layer = 2,
                  .n_head = 4,
                  .tie_word_embeddings = tied});
  model.Initialize(CpuContext(), {.seed = 5});
  optim::AdamW optimizer(model.Parameters(), {.lr = 0.02});
  SingleRankPlugin plugin({.precision = dtype == DType::kF64 ? Precision::kF64 : Precision::kF32});
  Booster booster(plugin);
  const Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const Shape shape{kBatch, kBlock};
  const Tensor tokens = Tensor::FromVector<int64_t>(Tokens(3), shape, CpuContext());
  const Tensor targets = Tensor::FromVector<int64_t>(Tokens(4), shape, CpuContext());
  for (int step = 0; step < 3; ++step) {
    booster.backward(boosted.criterion(boosted.model(tokens), targets), optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }
  OkOrThrow(booster.save_model(
      folder, {.size_per_shard_mb = 1, .config_json = nn::FormatHfConfig(model.config())}));
  const Tensor logits = boosted.model(tokens);
  Json json;
  json["tokens"] = OfTokens(Tokens(3));
  json["targets"] = OfTokens(Tokens(4));
  json["loss"] = boosted.criterion(logits, targets).ToVector<double>()[0];
  const Json rows = Rows(logits.ToVector<double>(), kVocab);
  for (int64_t i = 0; i < kBatch; ++i) {
    json["logits"].push_back(Json(rows.begin() + i * kBlock, rows.begin() + (i + 1) * kBlock));
  }
  json["tolerance"] = Tolerance(dtype, ErrorKind::kEndToEnd);
  std::ofstream(batch) << json;
}

int Compare(const std::string& folder, const std::string& batch) {
  const std::string both = folder + " " + batch;
  const int status = std::system(("${PYTHON:-python3} " APOGEE_TORCH_GPT2 " " + both).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(TorchGpt2Test, ComputesTheSame) {
  const TempDir dir;
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (const bool tied : {true, false}) {
      const std::string name = std::string(DTypeName(dtype)) + (tied ? "_tied" : "_untied");
      const std::string folder = dir / name, batch = dir / (name + ".json");
      TrainAndSave(dtype, tied, folder, batch);
      EXPECT_TRUE(std::filesystem::exists(folder + "/model.safetensors.index.json"));
      const int code = Compare(folder, batch);
      if (code == 77) GTEST_SKIP() << "Python's torch or safetensors is not installed";
      EXPECT_EQ(code, 0) << name;
    }
  }
  // What another model computes is told apart.
  EXPECT_EQ(Compare(dir / "f64_tied", dir / "f64_untied.json"), 1);
}

}  // namespace torch_gpt2_test
}  // namespace apogee
