// SPDX-License-Identifier: Apache-2.0

// Module: names, initialisation, tying, hooks, training mode, precision.
#include "apogee/nn/module.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/nn/tiny_models.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::nn {
namespace module_test {

using ::testing::HasSubstr;

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

TEST_F(ModuleTest, LazyValuesAreThoseOfInitialize) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const bool is_llama : {false, true}) {
      const auto make = [&]() -> std::unique_ptr<Module> {
        if (is_llama) return std::make_unique<Llama>(TinyLlama());
        return std::make_unique<Gpt2>(TinyGpt2());
      };
      const std::unique_ptr<Module> eager = make(), lazy = make();
      eager->Initialize(context_, {.seed = 3, .dtype = dtype});
      const ContextPtr context = CpuContext();
      lazy->InitializeLazily(context, {.seed = 3, .dtype = dtype});
      EXPECT_EQ(context->ledger().live_total_bytes(), 0);
      EXPECT_EQ(lazy->generator().key().a, eager->generator().key().a);
      for (const ParameterPtr& p : lazy->Parameters()) {
        EXPECT_TRUE(p->has_value() && p->is_lazy() && !p->is_part() && p->is_local());
        EXPECT_EQ(p->dtype(), dtype);
        EXPECT_EQ(p->context(), context);
        EXPECT_EQ(p->grad_dtype(), dtype);
        const int64_t before = context->ledger().live_bytes(MemoryCategory::kParameter);
        const ParameterPtr want = eager->FindParameter(p->name());
        EXPECT_EQ(p->value().ToVector<double>(), want->value().ToVector<double>()) << p->name();
        EXPECT_FALSE(p->is_lazy());
        EXPECT_EQ(p->value().raw(), p->value().raw());
        EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kParameter) - before,
                  p->value().bytes());
      }
    }
  }
}

TEST_F(ModuleTest, LazyModelsTrainAsOthers) {
  Gpt2 eager(TinyGpt2()), lazy(TinyGpt2());
  eager.Initialize(context_, {.seed = 3});
  lazy.InitializeLazily(context_, {.seed = 3});
  for (Gpt2* model : {&eager, &lazy}) {
    model->FindParameter("transformer.wpe.weight")->set_requires_grad(false);
    model->FindParameter("transformer.ln_f.weight")->set_grad_dtype(DType::kF64);
    autograd::Backward(CrossEntropyLoss()((*model)(Tokens()), Targets()));
  }
  for (const ParameterPtr& p : lazy.Parameters()) {
    const ParameterPtr want = eager.FindParameter(p->name());
    ASSERT_EQ(p->has_grad(), want->has_grad()) << p->name();
    if (!p->has_grad()) continue;
    EXPECT_EQ(p->grad().dtype(), want->grad().dtype()) << p->name();
    EXPECT_EQ(p->grad().ToVector<double>(), want->grad().ToVector<double>()) << p->name();
  }
}

TEST_F(ModuleTest, LazyValuesAreOfTheFirstInitialize) {
  const std::string name = "transformer.wte.weight";
  Gpt2 eager(TinyGpt2());
  eager.Initialize(context_, {.seed = 3});
  const std::vector<float> want = eager.FindParameter(name)->data().ToVector<float>();
  for (const bool again_lazy : {false, true}) {
    Gpt2 lazy(TinyGpt2());
    lazy.InitializeLazily(context_, {.seed = 3});
    if (again_lazy) {
      lazy.InitializeLazily(context_, {.seed = 4, .dtype = DType::kBF16});
    } else {
      lazy.Initialize(context_, {.seed = 4, .dtype = DType::kBF16});
    }
    EXPECT_EQ(lazy.FindParameter(name)->data().ToVector<float>(), want);
  }
  // A lazy one does not take the place of a value.
  eager.InitializeLazily(context_, {.seed = 4});
  EXPECT_FALSE(eager.FindParameter(name)->is_lazy());
  // Other dtypes come from it.
  Gpt2 lazy(TinyGpt2());
  lazy.InitializeLazily(context_, {.seed = 3});
  lazy.To(DType::kBF16);
  eager.To(DType::kBF16);
  EXPECT_EQ(lazy.FindParameter(name)->dtype(), DType::kBF16);
  EXPECT_EQ(lazy.FindParameter(name)->data().ToVector<float>(),
            eager.FindParameter(name)->data().ToVector<float>());
}

// A module that gets a parent later keeps the values it was given.
TEST_F(ModuleTest, LazyValuesKeepTheirNames) {
  class Parent : public Module {
   public:
    explicit Parent(const std::shared_ptr<Module>& child) { Register("child", child); }
    Tensor Forward(const Tensor& x) override { return x; }
  };
  const auto eager = std::make_shared<Gpt2>(TinyGpt2());
  const auto lazy = std::make_shared<Gpt2>(TinyGpt2());
  eager->Initialize(context_, {.seed = 3});
  lazy->InitializeLazily(context_, {.seed = 3});
  Parent a(eager), b(lazy);
  for (size_t i = 0; i < a.Parameters().size(); ++i) {
    EXPECT_EQ(b.Parameters()[i]->data().ToVector<float>(),
              a.Parameters()[i]->data().ToVector<float>());
  }
}

TEST_F(ModuleTest, LazyValuesCanBeSetUnmade) {
  const ContextPtr context = CpuContext();
  Mlp model({.sizes = {4, 4}});
  model.InitializeLazily(context, {.seed = 3});
  const ParameterPtr p = model.Parameters()[0];
  EXPECT_THROW(p->set_value(Tensor::Zeros({3}, DType::kF32, context_)), Error);
  EXPECT_TRUE(p->is_lazy());
  p->set_value(Tensor::Full(p->shape(), DType::kBF16, 2, context_));
  EXPECT_FALSE(p->is_lazy());
  EXPECT_EQ(p->grad_dtype(), DType::kBF16);
  EXPECT_EQ(p->context(), context_);
  EXPECT_EQ(p->data().ToVector<float>(), std::vector<float>(16, 2.0F));
  EXPECT_EQ(context->ledger().peak_total_bytes(), 0);
}

// Half of a value; the rest is with other ranks.
class HalfStorage : public autograd::ParameterStorage {
 public:
  explicit HalfStorage(const Tensor& half) : half_(half) {}
  DType dtype() const override { return half_.dtype(); }
  ContextPtr context() const override { return half_.context(); }
  Tensor Read() override { Throw("the other half is not here"); }
  Tensor ReadLocal() override { return half_; }
  bool is_local() const override { return false; }
  bool is_whole() const override { return false; }
  std::string ReplaceProblem() const override { return "is a half and stays one"; }

 private:
  Tensor half_;
};

TEST_F(ModuleTest, PartsOfLazyValues) {
  const ContextPtr context = CpuContext();
  Mlp model({.sizes = {4, 4}});
  model.InitializeLazily(context, {.seed = 3, .dtype = DType::kBF16});
  const ParameterPtr weight = model.Parameters()[0], bias = model.Parameters()[1];
  const Tensor part = Tensor::Full({2}, DType::kF32, 2, context_);
  weight->set_storage(std::make_shared<HalfStorage>(part));
  EXPECT_TRUE(weight->is_part() && !weight->is_local() && !weight->is_lazy());
  EXPECT_EQ(weight->grad_dtype(), DType::kF32);
  EXPECT_EQ(weight->dtype(), DType::kF32);
  EXPECT_EQ(weight->data().raw(), part.raw());
  EXPECT_THROW(weight->value(), Error);
  EXPECT_THROW(weight->set_value(Tensor::Zeros(weight->shape(), DType::kF32, context_)), Error);
  EXPECT_THROW(weight->set_part(part), Error);
  bias->set_part(part);
  EXPECT_TRUE(bias->is_part() && !bias->is_lazy());
  EXPECT_EQ(bias->value().ToVector<float>(), part.ToVector<float>());
  EXPECT_EQ(context->ledger().peak_total_bytes(), 0);
  for (const ParameterPtr& p : {weight, bias}) {
    EXPECT_THROW(p->set_lazy_value({DType::kF32, context, [&] { return part; }}), Error);
  }
}

// A read that cannot make the value says so, and the next one tries again.
TEST_F(ModuleTest, LazyValuesThatCannotBeMadeStayLazy) {
  const ContextPtr context = CpuContext();
  Mlp model({.sizes = {4, 4}});
  model.InitializeLazily(context, {.seed = 3});
  context->ledger().set_model_data_limit(1);
  const ParameterPtr p = model.Parameters()[0];
  EXPECT_THROW(p->value(), Error);
  EXPECT_TRUE(p->is_lazy());
  context->ledger().set_model_data_limit(0);
  EXPECT_EQ(p->value().shape(), p->shape());
  EXPECT_THROW(p->set_lazy_value({DType::kF32, context, nullptr}), Error);
  p->set_lazy_value(
      {DType::kF32, context, [&] { return Tensor::Zeros({4}, DType::kF32, context); }});
  EXPECT_THROW(p->value(), Error) << "another shape";
  p->set_lazy_value({DType::kF64, context, [&, shape = p->shape()] {
                       return Tensor::Zeros(shape, DType::kF32, context);
                     }});
  EXPECT_THROW(p->value(), Error) << "another dtype";
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

TEST_F(ModuleTest, OperandsOfTwoDTypesGetARemedy) {
  Linear layer(3, 2);
  layer.Initialize(context_, {.dtype = DType::kBF16});
  const Tensor x = Tensor::Full({4, 3}, DType::kF32, 1, context_);
  const auto remedy = ::testing::AllOf(HasSubstr("operands need one dtype, got f32 and bf16"),
                                       HasSubstr("autograd::Cast(x, dtype)"),
                                       HasSubstr("precision casts the model's weights, but neither "
                                                 "its inputs nor tensors of your own"));
  EXPECT_THAT(testing::MessageOf([&] { layer(x); }), remedy);
  EXPECT_THAT(testing::MessageOf([&] { autograd::Add(x, layer.bias()->value()); }), remedy);
  EXPECT_NO_THROW(layer(autograd::Cast(x, DType::kBF16)));
}

TEST_F(ModuleTest, ConvertsPrecision) {
  Gpt2 model(TinyGpt2());
  model.Initialize(context_, {.seed = 3});
  model.To(DType::kBF16);
  for (const ParameterPtr& p : model.Parameters()) EXPECT_EQ(p->data().dtype(), DType::kBF16);
  EXPECT_EQ(model(Tokens()).dtype(), DType::kBF16);
  EXPECT_THROW(model.To(DType::kI64), Error);
}

}  // namespace module_test
}  // namespace apogee::nn
