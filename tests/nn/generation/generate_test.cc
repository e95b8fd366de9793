// SPDX-License-Identifier: Apache-2.0

// Generated tokens are those of a plain loop over whole forwards of each row alone.
#include "apogee/nn/generation/generate.h"

#include <gmock/gmock.h>

#include <memory>

#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/generation/kv_cache.h"
#include "apogee/nn/generation/sampling.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/nn/tiny_models.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace generate_test {

using apogee::testing::Says;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tokens = std::vector<int64_t>;
using Rows = std::vector<Tokens>;

constexpr int64_t kPositions = 16;

std::unique_ptr<Module> MakeModel(bool llama, DType dtype = DType::kF64) {
  std::unique_ptr<Module> model;
  if (llama) {
    LlamaConfig config = module_test::TinyLlama();
    config.max_position_embeddings = kPositions;
    model = std::make_unique<Llama>(config);
  } else {
    Gpt2Config config = module_test::TinyGpt2();
    config.n_positions = kPositions;
    config.dropout = 0.5;  // must be off
    model = std::make_unique<Gpt2>(config);
  }
  model->SetInit("*.weight", Init::Normal(0, 0.4));
  model->Initialize(CpuContext(), {.seed = 5, .dtype = dtype});
  return model;
}

const Rows kPrompts = {{3}, {1, 2, 3, 4, 5}, {7, 7, 16}};

// Token by token, each row alone, the last max_tokens tokens.
Rows Reference(Module& model, const Rows& prompts, const GenerateOptions& o) {
  const autograd::NoGradGuard no_grad;
  model.Train(false);
  Rows result;
  for (size_t b = 0; b < prompts.size(); ++b) {
    Tokens text = prompts[b], drawn;
    for (int64_t step = 0; step < o.max_new_tokens; ++step) {
      const int64_t length = std::min<int64_t>(std::ssize(text), kPositions);
      const Tokens window(text.end() - length, text.end());
      const Tensor logits = model(Tensor::FromVector<int64_t>(window, {1, length}, CpuContext()));
      drawn.push_back(SampleToken(logits.Slice(1, length - 1, 1).ToVector<double>(),
                                  {o.temperature, o.top_k, o.top_p},
                                  DrawOf(o.seed, static_cast<int64_t>(b), step)));
      text.push_back(drawn.back());
      if (std::ranges::count(o.stop_tokens, drawn.back()) > 0) break;
    }
    result.push_back(drawn);
  }
  return result;
}

TEST(GenerateTest, EqualsThePlainLoop) {
  for (const bool llama : {false, true}) {
    const auto model = MakeModel(llama);
    for (const double temperature : {0.0, 0.9}) {
      for (const Tokens& stop : {Tokens{}, Tokens{2, 9}}) {
        GenerateOptions options{.max_new_tokens = 12,
                                .temperature = temperature,
                                .top_k = temperature > 0 ? 12 : 0,
                                .top_p = temperature > 0 ? 0.9 : 1,
                                .stop_tokens = stop,
                                .seed = 4,
                                .max_tokens = kPositions};
        const Rows want = Reference(*model, kPrompts, options);
        for (const bool use_cache : {false, true}) {
          options.use_cache = use_cache;
          EXPECT_EQ(Generate(*model, kPrompts, options), want)
              << "llama " << llama << ", temperature " << temperature << ", cache " << use_cache;
        }
      }
    }
  }
}

// The window slides once the longest row fills the positions, and so do prompts that are too long.
TEST(GenerateTest, SlidingWindow) {
  for (const bool llama : {false, true}) {
    const auto model = MakeModel(llama);
    for (const Rows& prompts : {kPrompts, Rows{Tokens(kPositions + 5, 6), {1}}}) {
      GenerateOptions options{
          .max_new_tokens = 25, .temperature = 1, .max_tokens = kPositions, .slide_window = true};
      const Rows want = Reference(*model, prompts, options);
      EXPECT_EQ(Generate(*model, prompts, options), want);
      options.use_cache = false;
      options.window_multiple = kPositions;
      EXPECT_EQ(Generate(*model, prompts, options), want);
    }
  }
}

// Longer than the parts in which prompts are read.
TEST(GenerateTest, LongPrompts) {
  LlamaConfig config = module_test::TinyLlama();
  config.max_position_embeddings = 700;
  Llama model(config);
  model.SetInit("*.weight", Init::Normal(0, 0.4));
  model.Initialize(CpuContext(), {.seed = 5, .dtype = DType::kF64});
  Rows prompts(3);
  for (int64_t t = 0; t < 600; ++t) {
    prompts[0].push_back(t * t % 17);
    if (t < 270) prompts[1].push_back(t * 5 % 17);
  }
  prompts[2] = {4, 5};
  GenerateOptions options{.max_new_tokens = 5};
  const Rows with = Generate(model, prompts, options);
  options.use_cache = false;
  EXPECT_EQ(with, Generate(model, prompts, options));
}

// A row's draws are those of its seed and its place in the batch, not of its neighbours.
TEST(GenerateTest, DrawsOfASeed) {
  const auto model = MakeModel(true);
  const auto generate = [&](const Rows& prompts, uint64_t seed) {
    return Generate(*model, prompts, {.max_new_tokens = 10, .temperature = 1.5, .seed = seed});
  };
  const Rows first = generate(kPrompts, 1);
  EXPECT_EQ(generate(kPrompts, 1), first);
  EXPECT_EQ(generate({kPrompts[0]}, 1)[0], first[0]);
  EXPECT_EQ(generate({{9}, kPrompts[1]}, 1)[1], first[1]);
  EXPECT_NE(generate(kPrompts, 2), first);
  const Rows twins = generate({{3}, {3}}, 1);
  EXPECT_NE(twins[0], twins[1]);
}

TEST(GenerateTest, EndsWhenAllHaveStopped) {
  const auto model = MakeModel(true);
  int64_t calls = 0;
  // The next token is always the one after the last.
  const auto count = [&calls](const Tensor& tokens) {
    ++calls;
    std::vector<float> logits;
    for (const int64_t token : tokens.ToVector<int64_t>()) {
      for (int64_t v = 0; v < 17; ++v) logits.push_back(v == token + 1 ? 1.f : 0.f);
    }
    return Tensor::FromVector<float>(logits, {tokens.size(0), tokens.size(1), 17}, CpuContext());
  };
  const Rows drawn =
      Generate(*model, {{3}, {1, 5}}, {.max_new_tokens = 50, .stop_tokens = {8}}, count);
  EXPECT_EQ(drawn, (Rows{{4, 5, 6, 7, 8}, {6, 7, 8}}));
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(Generate(*model, {{3}}, {.max_new_tokens = 0}, count), Rows(1));
  EXPECT_EQ(calls, 5);
}

TEST(GenerateTest, KeepsModesAndGradMode) {
  const auto model = MakeModel(true);
  Module* const frozen = model->Modules()[3];
  frozen->Train(false);
  std::vector<bool> before;
  for (const Module* module : model->Modules()) before.push_back(module->is_training());
  EXPECT_THAT(before, ::testing::Contains(true));
  Generate(*model, kPrompts, {.max_new_tokens = 2});
  EXPECT_THROW(Generate(*model, {{99}}, {.max_new_tokens = 2}), Error);  // no such token
  std::vector<bool> after;
  for (const Module* module : model->Modules()) after.push_back(module->is_training());
  EXPECT_EQ(after, before);
  EXPECT_TRUE(autograd::GradModeEnabled());
  EXPECT_EQ(CurrentKvCache(), nullptr);
}

// Any causal model of tokens can do without a cache.
class RecurrentModel : public Module {
 public:
  RecurrentModel()
      : embed_(Register("embed", std::make_shared<Embedding>(17, 6))),
        gru_(Register("gru", std::make_shared<Gru>(6, 8))),
        head_(Register("head", std::make_shared<Linear>(8, 17))) {}
  Tensor Forward(const Tensor& x) override { return (*head_)((*gru_)((*embed_)(x))); }

 private:
  std::shared_ptr<Embedding> embed_;
  std::shared_ptr<Gru> gru_;
  std::shared_ptr<Linear> head_;
};

TEST(GenerateTest, ModelWithoutACache) {
  RecurrentModel model;
  model.SetInit("*", Init::Normal(0, 0.7));
  model.Initialize(CpuContext(), {.seed = 2, .dtype = DType::kF64});
  GenerateOptions options{.max_new_tokens = 10, .temperature = 1};
  EXPECT_THAT([&] { Generate(model, kPrompts, options); },
              Says(AllOf(HasSubstr("no key/value cache for this model"),
                         HasSubstr("takes_documents"), HasSubstr("set use_cache = false"))));
  options.use_cache = false;
  EXPECT_EQ(Generate(model, kPrompts, options), Reference(model, kPrompts, options));
}

TEST(GenerateTest, Refusals) {
  const auto model = MakeModel(false);
  const auto generate = [&](const Rows& prompts, const GenerateOptions& options) {
    return [&model, prompts, options] { Generate(*model, prompts, options); };
  };
  EXPECT_THAT(generate({}, {}), Says(HasSubstr("there are no prompts")));
  EXPECT_THAT(generate({{1}, {}}, {}), Says(HasSubstr("prompt 1 has no tokens")));
  EXPECT_THAT(generate({{1}, Tokens(17, 1)}, {.max_tokens = 16}),
              Says(HasSubstr("prompt 1 has 17 tokens, more than the 16 positions of the model")));
  EXPECT_THAT(generate({{1, 2, 3}}, {.max_new_tokens = 15, .max_tokens = 16}),
              Says(AllOf(HasSubstr("need 17 positions, the model has 16"),
                         HasSubstr("lower max_new_tokens to 14"))));
  EXPECT_THAT(generate({{1}}, {.max_new_tokens = -1}), Says(HasSubstr("must not be negative")));
  EXPECT_THAT(generate({{1}}, {.slide_window = true}), Says(HasSubstr("slide_window needs")));
  EXPECT_THAT(generate({{1}}, {.top_p = 2}), Says(HasSubstr("top_p must be in (0, 1]")));
  EXPECT_THAT([&] { Generate(*model, {{1}}, {}, [](const Tensor& tokens) { return tokens; }); },
              Says(HasSubstr("must give logits [batch, tokens, vocabulary], got [1, 1]")));
  // Without a limit of its own the model's is found.
  EXPECT_THAT(generate({{1}}, {.max_new_tokens = 17}), Says(HasSubstr("up to 16")));
}

TEST(GenerateTest, StopTokensOfAConfig) {
  EXPECT_EQ(StopTokensOf({{"eos_token_id", {2, 5}}, {"bos_token_id", {1}}}), (Tokens{2, 5}));
  EXPECT_EQ(StopTokensOf(NoTokenIds()), Tokens());
  EXPECT_EQ(StopTokensOf({}), Tokens());
}

}  // namespace generate_test
}  // namespace apogee::nn
