// SPDX-License-Identifier: Apache-2.0

// Every family of decoders generates the tokens, and computes the logits, of whole forwards of each
// row alone: with windows that are shorter than the text, soft caps, learned positions, positions
// of a part of the head.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>

#include "apogee/autograd/grad_mode.h"
#include "apogee/matrix/models/families.h"
#include "apogee/nn/generation/generate.h"
#include "apogee/nn/generation/kv_cache.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace families_generate_test {

using apogee::testing::Says;
using ::testing::HasSubstr;
using Tokens = std::vector<int64_t>;
using Rows = std::vector<Tokens>;

constexpr int64_t kVocab = 19;

std::vector<std::string> Decoders() {
  std::vector<std::string> names;
  for (const std::string& name : matrix::FamilyNames()) {
    if (!matrix::FamilyWorkload(name).is_encoder()) names.push_back(name);
  }
  return names;
}

// The family's tiny model, of f64, with so many positions.
HfModel MakeFamily(const std::string& name, int64_t positions = 16) {
  std::string config = matrix::FamilyConfig(name);
  const std::string old = R"("max_position_embeddings": 16)";
  config.replace(config.find(old), old.size(),
                 R"("max_position_embeddings": )" + std::to_string(positions));
  HfModel hf = ValueOrThrow(MakeHfModel(config, name, [](const std::string&) {}));
  hf.module->SetInit("*.weight", Init::Normal(0, 0.4));
  const auto is_bias = [](const ParameterPtr& p) { return p->name().ends_with(".bias"); };
  if (std::ranges::any_of(hf.module->Parameters(), is_bias)) {
    hf.module->SetInit("*.bias", Init::Normal(0, 0.2));
  }
  hf.module->Initialize(CpuContext(), {.seed = 6, .dtype = DType::kF64});
  return hf;
}

std::vector<double> At(const Tensor& logits, size_t row, int64_t token) {
  return logits.Slice(0, static_cast<int64_t>(row), 1).Slice(1, token, 1).ToVector<double>();
}

// What a row has drawn, and the logits of each step.
struct Text {
  Tokens drawn;
  std::vector<std::vector<double>> logits;
};

// The most likely tokens, each of a forward of the row's whole text.
Text Plain(Module& model, Tokens row, int64_t count) {
  const autograd::NoGradGuard no_grad;
  model.Train(false);
  Text text;
  for (int64_t step = 0; step < count; ++step) {
    const int64_t length = std::ssize(row);
    const Tensor tokens = Tensor::FromVector<int64_t>(row, {1, length}, CpuContext());
    text.logits.push_back(At(model(tokens), 0, length - 1));
    text.drawn.push_back(std::ranges::max_element(text.logits.back()) - text.logits.back().begin());
    row.push_back(text.drawn.back());
  }
  return text;
}

// Of Generate, whose forwards are listened to. With the cache only the last part of the prompts
// counts, which ends at the last token of every row; without, padding is behind the text.
std::vector<Text> Generated(Module& model, const Rows& prompts, const GenerateOptions& options) {
  std::vector<Tensor> forwards;
  const auto forward = [&](const Tensor& tokens) {
    const bool part_of_prompt = options.use_cache && !forwards.empty() && tokens.size(1) > 1;
    if (part_of_prompt) forwards.pop_back();
    return forwards.emplace_back(model(tokens));
  };
  const Rows drawn = Generate(model, prompts, options, forward);
  EXPECT_EQ(std::ssize(forwards), options.max_new_tokens);
  std::vector<Text> texts(prompts.size());
  for (size_t b = 0; b < prompts.size(); ++b) {
    texts[b].drawn = drawn[b];
    for (size_t step = 0; step < drawn[b].size(); ++step) {
      const Tensor& logits = forwards[step];
      texts[b].logits.push_back(At(
          logits, b, options.use_cache ? logits.size(1) - 1 : std::ssize(prompts[b]) + step - 1));
    }
  }
  return texts;
}

void ExpectPlainTexts(Module& model, const Rows& prompts, int64_t count) {
  std::vector<Text> want;
  for (const Tokens& prompt : prompts) want.push_back(Plain(model, prompt, count));
  for (const bool use_cache : {true, false}) {
    SCOPED_TRACE(use_cache ? "with cache" : "without cache");
    const std::vector<Text> got =
        Generated(model, prompts, {.max_new_tokens = count, .use_cache = use_cache});
    for (size_t b = 0; b < prompts.size(); ++b) {
      EXPECT_EQ(got[b].drawn, want[b].drawn) << "row " << b;
      ASSERT_EQ(got[b].logits.size(), want[b].logits.size());
      for (size_t step = 0; step < want[b].logits.size(); ++step) {
        SCOPED_TRACE(::testing::Message() << "row " << b << ", step " << step);
        ExpectClose(got[b].logits[step], want[b].logits[step], 1e-11);
      }
    }
  }
}

TEST(FamiliesGenerateTest, EqualsWholeForwards) {
  EXPECT_THAT(Decoders(), ::testing::IsSupersetOf({"llama31", "mistral", "gemma2", "gpt_neox",
                                                   "opt", "opt_after", "gpt2", "phi3"}));
  for (const std::string& name : Decoders()) {
    SCOPED_TRACE(name);
    const HfModel hf = MakeFamily(name);
    ExpectPlainTexts(*hf.module, {{3}, {1, 2, 3, 4, 5, 6}, {7, 7, 16}}, 11);
    ExpectPlainTexts(*hf.module, {{8, 1, 5}, {4, 4, 2}}, 13);  // without padding
  }
}

// Prompts that are read in parts, with padding that is longer than the windows.
TEST(FamiliesGenerateTest, LongPrompts) {
  for (const char* name : {"mistral", "gemma2", "opt"}) {
    SCOPED_TRACE(name);
    const HfModel hf = MakeFamily(name, 320);
    Rows prompts(2);
    for (int64_t t = 0; t < 300; ++t) prompts[0].push_back((t * t + t / 7) % kVocab);
    for (int64_t t = 0; t < 260; ++t) prompts[1].push_back(t * 5 % kVocab);
    prompts.push_back({4, 5});
    ExpectPlainTexts(*hf.module, prompts, 3);
  }
}

TEST(FamiliesGenerateTest, MoreTokensThanPositions) {
  for (const std::string& name : Decoders()) {
    SCOPED_TRACE(name);
    const HfModel hf = MakeFamily(name);
    EXPECT_EQ(hf.max_tokens, 16);
    const Tokens longer(17, 1), fits(16, 1);
    const auto generate = [&](const Tokens& prompt, const GenerateOptions& options) {
      return [&, prompt, options] { Generate(*hf.module, {prompt}, options); };
    };
    EXPECT_THAT(generate(longer, {.max_new_tokens = 1, .max_tokens = hf.max_tokens}),
                Says(HasSubstr("prompt 0 has 17 tokens, more than the 16 positions")));
    // The model knows its positions, too.
    EXPECT_THAT(generate(longer, {.max_new_tokens = 1}), Says(HasSubstr("up to 16")));
    EXPECT_THAT(generate(fits, {.max_new_tokens = 2}), Says(HasSubstr("up to 16")));
    EXPECT_EQ(Generate(*hf.module, {fits}, {.max_new_tokens = 1})[0].size(), 1u);
  }
}

// Attention in both directions has no cache.
TEST(FamiliesGenerateTest, Encoders) {
  const HfModel bert = MakeFamily("bert");
  EXPECT_THAT(
      [&] {
        Generate(*bert.module, {{1, 2}}, {.max_new_tokens = 2});
      },
      Says(HasSubstr("no key/value cache for this model")));
}

}  // namespace families_generate_test
}  // namespace apogee::nn
