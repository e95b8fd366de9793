// SPDX-License-Identifier: Apache-2.0

// Folders of small language models, with the logits, tokens and losses that separate loops compute.
//
//   const Folder folder(true);                                   // a Llama; false: a GPT-2
//   const CommandResult result = Command("generate " + folder.path() + " --prompt x --json");
//   const Tokens want = folder.Greedy(folder.Encode("x"), 5, {});
#ifndef APOGEE_TESTS_TOOLS_LANGUAGE_MODEL_FOLDER_H_
#define APOGEE_TESTS_TOOLS_LANGUAGE_MODEL_FOLDER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/nn/models/hf_config.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools::language_model_test {

namespace fs = std::filesystem;
using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::TempDir;
using Json = nlohmann::json;
using Tokens = std::vector<int64_t>;

inline constexpr int64_t kPositions = 24;

inline std::string TokenizerPath(const std::string& name) {
  return std::string(APOGEE_GOLDEN) + "/tokenizers/" + name + "/tokenizer.json";
}

// A folder with a Llama for the tokenizer of Llama 2, which puts <s> before a text, or with a GPT-2
// for that of GPT-2, which puts nothing. Or with the model of a config.json.
class Folder {
 public:
  explicit Folder(bool llama, std::string config = "") {
    if (!config.empty()) {
      model_ = ValueOrThrow(nn::MakeHfModel(config, "config", [](const std::string&) {})).module;
    } else if (llama) {
      const nn::LlamaConfig c{.vocab_size = 724,
                              .hidden_size = 16,
                              .intermediate_size = 20,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 4,
                              .num_key_value_heads = 2,
                              .max_position_embeddings = kPositions,
                              .token_ids = {{"eos_token_id", {2}}}};
      config = nn::FormatHfConfig(c);
      model_ = std::make_unique<nn::Llama>(c);
    } else {
      const nn::Gpt2Config c{
          .vocab_size = 521, .n_positions = kPositions, .n_embd = 12, .n_layer = 2, .n_head = 3};
      config = nn::FormatHfConfig(c);
      model_ = std::make_unique<nn::Gpt2>(c);
    }
    model_->SetInit("*.weight", nn::Init::Normal(0, 0.4));
    model_->Initialize(CpuContext(), {.seed = 7, .dtype = DType::kF64});
    model_->Train(false);
    std::vector<checkpoint::TensorPart> parts;
    for (const auto& p : model_->Parameters()) {
      parts.push_back({p->name(), p->data(), Layout(p->shape())});
    }
    const absl::Status saved = checkpoint::SaveModelWeights(
        {checkpoint::RealFileSystem(), path()}, parts, {.config_json = config}, nullptr);
    EXPECT_TRUE(saved.ok()) << Message(saved);
    fs::copy_file(TokenizerPath(llama ? "llama2" : "gpt2"), path() + "/tokenizer.json");
    tokenizer_ = ValueOrThrow(data::LoadTokenizer(path() + "/tokenizer.json"));
  }

  std::string path() const { return dir_ / "model"; }
  const data::Tokenizer& tokenizer() const { return *tokenizer_; }
  void Write(const std::string& name, const std::string& text) const {
    dir_.Write("model/" + name, text);
  }

  Tokens Encode(const std::string& text) const {
    std::vector<int32_t> ids = tokenizer_->prefix();
    tokenizer_->Encode(text, ids);
    return Tokens(ids.begin(), ids.end());
  }
  std::string Decode(const Tokens& tokens) const {
    return tokenizer_->Decode(std::vector<int32_t>(tokens.begin(), tokens.end()), true);
  }
  // [tokens, vocabulary]
  std::vector<std::vector<double>> Logits(const Tokens& tokens) const {
    const autograd::NoGradGuard no_grad;
    const Tensor logits =
        (*model_)(Tensor::FromVector<int64_t>(tokens, {1, std::ssize(tokens)}, CpuContext()));
    std::vector<std::vector<double>> rows;
    for (int64_t t = 0; t < std::ssize(tokens); ++t) {
      rows.push_back(logits.Slice(1, t, 1).ToVector<double>());
    }
    return rows;
  }
  Tokens Greedy(Tokens text, int64_t count, const Tokens& stop) const {
    Tokens drawn;
    while (std::ssize(drawn) < count) {
      const std::vector<double> last = Logits(text).back();
      drawn.push_back(std::ranges::max_element(last) - last.begin());
      text.push_back(drawn.back());
      if (std::ranges::count(stop, drawn.back()) > 0) break;
    }
    return drawn;
  }
  // The sum of the losses of tokens 1 to n, in windows of `block`.
  double Loss(const Tokens& tokens, int64_t block, int64_t n) const {
    double sum = 0;
    for (int64_t at = 0; at < n; at += block) {
      const int64_t end = std::min(at + block, n);
      const auto logits = Logits(Tokens(tokens.begin() + at, tokens.begin() + end));
      for (int64_t t = at; t < end; ++t) {
        const std::vector<double>& row = logits[static_cast<size_t>(t - at)];
        double total = 0;
        for (const double logit : row) total += std::exp(logit);
        sum += std::log(total) - row[static_cast<size_t>(tokens[static_cast<size_t>(t + 1)])];
      }
    }
    return sum;
  }

 private:
  TempDir dir_;
  std::unique_ptr<nn::Module> model_;
  data::TokenizerPtr tokenizer_;
};

inline std::vector<Json> Lines(const CommandResult& result) {
  EXPECT_EQ(result.code, 0) << result.out;
  std::vector<Json> lines;
  std::istringstream text(result.out);
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

inline std::string Quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace apogee::tools::language_model_test

#endif  // APOGEE_TESTS_TOOLS_LANGUAGE_MODEL_FOLDER_H_
