// Module: names, initialisation, tying, hooks, training mode, precision.
#include "apogee/nn/module.h"

#include <gtest/gtest.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/tests/support/grad_check.h"

namespace apogee::nn {
namespace {

Gpt2Config TinyGpt2() {
  return {.vocab_size = 17, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3};
}
LlamaConfig TinyLlama() {
  return {.vocab_size = 17,
          .hidden_size = 16,
          .intermediate_size = 20,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 8};
}

class ModuleTest : public ::testing::Test {
 protected:
  Tensor Tokens() {
    return Tensor::FromVector<int64_t>({1, 5, 16, 0, 3, 3, 2, 9, 11, 4}, {2, 5}, context_);
  }
  Tensor Targets() {
    return Tensor::FromVector<int64_t>({5, 16, 0, 3, 7, 2, 9, 11, 4, 1}, {2, 5}, context_);
  }
  ContextPtr context_ = CpuContext();
};

TEST_F(ModuleTest, HuggingFaceNames) {
  Gpt2 gpt2(TinyGpt2());
  EXPECT_EQ(gpt2.Parameters().size(), 4u + 2 * 12);
  for (const char* name : {"transformer.wte.weight", "transformer.wpe.weight",
                           "transformer.h.1.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.bias",
                           "transformer.h.1.ln_2.weight", "transformer.ln_f.bias"}) {
    EXPECT_NE(gpt2.FindParameter(name), nullptr) << name;
  }
  EXPECT_EQ(gpt2.FindParameter("transformer.h.0.attn.c_attn.weight")->shape(), (Shape{12, 36}));
  Llama llama(TinyLlama());
  EXPECT_EQ(llama.Parameters().size(), 3u + 2 * 9);
  EXPECT_EQ(llama.FindParameter("model.layers.1.self_attn.k_proj.weight")->shape(), (Shape{8, 16}));
  EXPECT_NE(llama.FindParameter("lm_head.weight"), nullptr);
  EXPECT_NE(llama.FindParameter("model.norm.weight"), nullptr);
}

TEST_F(ModuleTest, InitialisationIsAFunctionOfSeedAndName) {
  Gpt2 a(TinyGpt2()), b(TinyGpt2()), c(TinyGpt2());
  a.Initialize(context_, {.seed = 1});
  b.Initialize(context_, {.seed = 1, .dtype = DType::kBF16});
  c.Initialize(context_, {.seed = 2});
  const std::string name = "transformer.h.1.mlp.c_fc.weight";
  const std::vector<float> va = a.FindParameter(name)->data().ToVector<float>();
  EXPECT_EQ(a.FindParameter(name)->data().To(DType::kBF16).ToVector<float>(),
            b.FindParameter(name)->data().ToVector<float>());
  EXPECT_NE(va, c.FindParameter(name)->data().ToVector<float>());
  EXPECT_NE(va, a.FindParameter("transformer.h.0.mlp.c_fc.weight")->data().ToVector<float>());
}

TEST_F(ModuleTest, UninitialisedParametersSaySo) {
  Gpt2 model(TinyGpt2());
  try {
    model(Tokens());
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Initialize"), std::string::npos) << error.what();
  }
}

TEST_F(ModuleTest, InvalidConfigsListEveryProblem) {
  try {
    Gpt2 model({.vocab_size = 0, .n_embd = 10, .n_layer = 0, .n_head = 3});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* word : {"vocab_size", "n_layer", "n_head"}) {
      EXPECT_NE(what.find(word), std::string::npos) << what;
    }
  }
  EXPECT_THROW(Llama({.num_attention_heads = 4, .num_key_value_heads = 3}), Error);
  EXPECT_THROW(Mlp({.sizes = {4}}), Error);
}

// The whole model against finite differences: composition, tying, residuals.
template <typename Model>
void CheckModelGradients(Model& model, const Tensor& tokens, const Tensor& targets) {
  const CrossEntropyLoss criterion;
  autograd::Backward(criterion(model(tokens), targets));
  for (const ParameterPtr& parameter : model.Parameters()) {
    const std::vector<double> grad = parameter->grad().ToVector<double>();
    double* x = parameter->data().template data<double>();
    double scale = 1e-3;
    for (double g : grad) scale = std::max(scale, std::abs(g));
    for (size_t i = 0; i < grad.size(); i += 1 + grad.size() / 7) {
      autograd::NoGradGuard no_grad;
      const double original = x[i], h = 1e-5;
      x[i] = original + h;
      const double up = criterion(model(tokens), targets).Item();
      x[i] = original - h;
      const double down = criterion(model(tokens), targets).Item();
      x[i] = original;
      ASSERT_NEAR(grad[i], (up - down) / (2 * h), 1e-5 * scale)
          << parameter->name() << "[" << i << "]";
    }
  }
}

TEST_F(ModuleTest, Gpt2Gradients) {
  for (bool tied : {true, false}) {
    Gpt2Config config = TinyGpt2();
    config.tie_word_embeddings = tied;
    Gpt2 model(config);
    model.Initialize(context_, {.seed = 3, .dtype = DType::kF64});
    CheckModelGradients(model, Tokens(), Targets());
  }
}

TEST_F(ModuleTest, LlamaGradients) {
  for (bool tied : {true, false}) {
    LlamaConfig config = TinyLlama();
    config.tie_word_embeddings = tied;
    Llama model(config);
    model.Initialize(context_, {.seed = 3, .dtype = DType::kF64});
    CheckModelGradients(model, Tokens(), Targets());
  }
}

TEST_F(ModuleTest, RecomputeChangesNoBit) {
  auto gradients = [&](bool recompute, double dropout) {
    Gpt2Config config = TinyGpt2();
    config.recompute = recompute;
    config.dropout = dropout;
    Gpt2 model(config);
    model.Initialize(context_, {.seed = 3});
    autograd::Backward(CrossEntropyLoss()(model(Tokens()), Targets()));
    std::vector<std::vector<float>> result;
    for (const ParameterPtr& p : model.Parameters()) result.push_back(p->grad().ToVector<float>());
    return result;
  };
  EXPECT_EQ(gradients(true, 0), gradients(false, 0));
  EXPECT_EQ(gradients(true, 0.2), gradients(false, 0.2));
  EXPECT_NE(gradients(false, 0.2), gradients(false, 0));
}

TEST_F(ModuleTest, DropoutOnlyWhileTraining) {
  Gpt2Config config = TinyGpt2();
  config.dropout = 0.5;
  Gpt2 model(config);
  model.Initialize(context_, {.seed = 3});
  model.Train(false);
  EXPECT_EQ(model(Tokens()).ToVector<float>(), model(Tokens()).ToVector<float>());
  model.Train();
  EXPECT_NE(model(Tokens()).ToVector<float>(), model(Tokens()).ToVector<float>());
}

TEST_F(ModuleTest, HooksRunAroundForwardAndBackward) {
  Mlp model({.sizes = {4, 5, 3}});
  model.Initialize(context_, {.seed = 1, .dtype = DType::kF64});
  std::vector<std::string> events;
  std::vector<Module*> modules = model.Modules();
  ASSERT_EQ(modules.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    const std::string id = std::to_string(i);
    modules[i]->AddPreForwardHook(
        [&events, id](Module&, const Tensor&) { events.push_back("pre_forward " + id); });
    modules[i]->AddPostForwardHook(
        [&events, id](Module&) { events.push_back("post_forward " + id); });
    modules[i]->AddPreBackwardHook(
        [&events, id](Module&) { events.push_back("pre_backward " + id); });
    modules[i]->AddPostBackwardHook(
        [&events, id](Module&) { events.push_back("post_backward " + id); });
  }
  autograd::Backward(autograd::Sum(model(testing::RandomTensor({2, 4}, "x", context_))));
  EXPECT_EQ(events, (std::vector<std::string>{"pre_forward 1", "post_forward 1", "pre_forward 2",
                                              "post_forward 2", "pre_backward 2", "post_backward 2",
                                              "pre_backward 1", "post_backward 1"}));
}

// A wrapper encloses Forward or its replacement, whichever of the two came first; the input of the
// replacement is made outside of the module's part of backward.
TEST_F(ModuleTest, WrappersEncloseReplacements) {
  for (const bool wrapped_first : {false, true}) {
    Mlp model({.sizes = {4, 3}});
    model.Initialize(context_, {.seed = 1, .dtype = DType::kF64});
    Module& layer = *model.Modules()[1];
    std::vector<std::string> events;
    const auto wrap = [&] {
      layer.WrapForward([&events](const Tensor& x, const Module::ForwardFunction& forward) {
        events.push_back("enter");
        Tensor y = forward(x);
        events.push_back("leave");
        return y;
      });
    };
    if (wrapped_first) {
      wrap();
      model(testing::RandomTensor({2, 4}, "x", context_));
      EXPECT_EQ(events, (std::vector<std::string>{"enter", "leave"}));
      events.clear();
    }
    layer.ReplaceForward(
        [&](const Tensor& x) {
          events.push_back("forward");
          return layer.Forward(x);
        },
        [&](const Tensor& x) {
          events.push_back("input");
          return autograd::View(x, {1, 4});
        });
    if (!wrapped_first) wrap();
    layer.AddPostBackwardHook([&](Module&) { events.push_back("post_backward"); });
    autograd::Parameter input("x", testing::RandomTensor({4}, "x", context_));
    input.AddGradHook([&](autograd::Parameter&) { events.push_back("input's gradient"); });
    autograd::Backward(autograd::Sum(model(input.value())));
    EXPECT_EQ(events, (std::vector<std::string>{"input", "enter", "forward", "leave",
                                                "post_backward", "input's gradient"}));
    EXPECT_TRUE(layer.has_wrapped_forward());
    EXPECT_FALSE(model.has_wrapped_forward());
    EXPECT_THROW(wrap(), Error);
    EXPECT_THROW(layer.ReplaceForward([](const Tensor& x) { return x; }), Error);
  }
}

TEST_F(ModuleTest, ConvertsPrecision) {
  Gpt2 model(TinyGpt2());
  model.Initialize(context_, {.seed = 3});
  model.To(DType::kBF16);
  for (const ParameterPtr& p : model.Parameters()) EXPECT_EQ(p->data().dtype(), DType::kBF16);
  EXPECT_EQ(model(Tokens()).dtype(), DType::kBF16);
  EXPECT_THROW(model.To(DType::kI64), Error);
}

}  // namespace
}  // namespace apogee::nn
