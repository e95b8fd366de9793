// SPDX-License-Identifier: Apache-2.0

// Models with head_chunks: losses and gradients are those of whole logits, and other uses of the
// logits throw. Under plugins: the cells of `apogee matrix` that end with _chunked.
#include <gmock/gmock-matchers.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn {
namespace head_chunks_test {

using ::testing::HasSubstr;
using testing::Says;

constexpr int64_t kVocab = 23;

std::unique_ptr<Decoder> Make(bool gpt2, int64_t chunks, const ContextPtr& context,
                              DType dtype = DType::kF64, double soft_cap = 0) {
  DecoderConfig config =
      gpt2 ? DecoderConfigOf(Gpt2Config{
                 .vocab_size = kVocab, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 4})
           : DecoderConfigOf(LlamaConfig{.vocab_size = kVocab,
                                         .hidden_size = 16,
                                         .intermediate_size = 24,
                                         .num_hidden_layers = 2,
                                         .num_attention_heads = 4,
                                         .num_key_value_heads = 2,
                                         .max_position_embeddings = 8});
  config.head_chunks = chunks;
  config.logits_soft_cap = soft_cap;
  auto model = std::make_unique<Decoder>(config);
  model->Initialize(context, {.seed = 5, .dtype = dtype});
  return model;
}

class HeadChunksTest : public ::testing::Test {
 protected:
  using Gradients = std::map<std::string, std::vector<double>>;
  Gradients Train(Decoder& model, const CrossEntropyLoss& criterion) const {
    const Tensor loss = criterion(model(tokens_), targets_);
    autograd::Backward(loss);
    Gradients result{{"loss", {loss.Item()}}};
    for (const auto& parameter : model.Parameters()) {
      if (parameter->has_grad()) result[parameter->name()] = parameter->grad().ToVector<double>();
    }
    return result;
  }
  Tensor Ids(const std::vector<int64_t>& values) const {
    return Tensor::FromVector<int64_t>(values, {1, static_cast<int64_t>(values.size())}, context_);
  }

  ContextPtr context_ = TestContext({.num_threads = 2});
  const Tensor tokens_ = Ids({1, 4, 9, 16, 22, 3, 0}), targets_ = Ids({4, -100, 16, 22, 3, 0, 7});
};

// GPT-2's head is tied to the embeddings.
TEST_F(HeadChunksTest, TrainingIsThatOfWholeLogits) {
  for (const bool gpt2 : {true, false}) {
    for (const double cap : {0.0, 1.5}) {
      for (const double smoothing : {0.0, 0.1}) {
        const CrossEntropyLoss criterion{.label_smoothing = smoothing};
        const Gradients want = Train(*Make(gpt2, 0, context_, DType::kF64, cap), criterion);
        const Gradients got = Train(*Make(gpt2, 3, context_, DType::kF64, cap), criterion);
        ASSERT_EQ(got.size(), want.size());
        for (const auto& [name, values] : want) {
          SCOPED_TRACE(name);
          ExpectClose(got.at(name), values, Tolerance(DType::kF64, ErrorKind::kEndToEnd));
        }
      }
    }
  }
}

TEST_F(HeadChunksTest, LogitsAreWholeInEvaluationAndWithoutAGraph) {
  const auto model = Make(false, 3, context_);
  const std::vector<double> want = (*Make(false, 0, context_))(tokens_).ToVector<double>();
  EXPECT_EQ(autograd::WholeLogits((*model)(tokens_)).ToVector<double>(), want);
  {
    const autograd::NoGradGuard no_grad;
    EXPECT_EQ((*model)(tokens_).ToVector<double>(), want);
  }
  model->Train(false);
  const Tensor logits = (*model)(tokens_);
  EXPECT_EQ(logits.ToVector<double>(), want);
  EXPECT_EQ(autograd::WholeLogits(logits).ToVector<double>(), want);
}

TEST_F(HeadChunksTest, OtherUsesOfTheLogitsThrow) {
  const auto model = Make(true, 3, context_);
  const Tensor logits = (*model)(tokens_);
  EXPECT_EQ(logits.shape(), Shape({1, 7, kVocab}));
  const auto refusal = Says(HasSubstr("head_chunks the model returns them so"));
  EXPECT_THAT([&] { logits.ToVector<double>(); }, refusal);
  EXPECT_THAT([&] { autograd::Scale(logits, 2); }, refusal);
  EXPECT_THAT(
      [&] {
        CrossEntropyLoss()(autograd::Slice(logits, 1, 0, 6), Ids({1, 2, 3, 4, 5, 6}));
      },
      refusal);
  EXPECT_THAT([&] { CrossEntropyLoss()(logits.Detach(), targets_); }, refusal);
}

// A mean of one's own, of the same logits twice.
TEST_F(HeadChunksTest, ACriterionMayUseTheLogitsTwice) {
  const auto gradient = [&](int64_t chunks) {
    const auto model = Make(false, chunks, context_);
    const Tensor logits = (*model)(tokens_);
    const Tensor loss = autograd::Add(
        CrossEntropyLoss()(logits, targets_),
        autograd::Scale(CrossEntropyLoss{.label_smoothing = 1}(logits, targets_), 0.5));
    autograd::Backward(loss);
    return model->FindParameter("lm_head.weight")->grad().ToVector<double>();
  };
  ExpectClose(gradient(2), gradient(0), Tolerance(DType::kF64, ErrorKind::kEndToEnd));
}

// Hooks on the model and on the head see one backward each, in order.
TEST_F(HeadChunksTest, HooksOfModulesRunOnce) {
  const auto hooks = [&](int64_t chunks) {
    const auto model = Make(false, chunks, context_);
    std::string seen;
    for (const auto& [name, module] : model->NamedModules()) {
      if (name != "" && name != "lm_head" && name != "model.norm") continue;
      module->AddPreBackwardHook([&seen, name = name](Module&) { seen += "+" + name; });
      module->AddPostBackwardHook([&seen, name = name](Module&) { seen += "-" + name; });
    }
    autograd::Backward(CrossEntropyLoss()((*model)(tokens_), targets_));
    return seen;
  };
  EXPECT_EQ(hooks(0), "+lm_head+-lm_head+model.norm-model.norm-");
  // The head runs in the loss, behind the model.
  EXPECT_EQ(hooks(2), "+lm_head-lm_head++model.norm-model.norm-");
}

TEST_F(HeadChunksTest, AFrozenHeadGetsNoGradient) {
  const auto model = Make(false, 2, context_), whole = Make(false, 0, context_);
  for (const auto& each : {model.get(), whole.get()}) {
    each->FindParameter("lm_head.weight")->set_requires_grad(false);
  }
  const Gradients got = Train(*model, {}), want = Train(*whole, {});
  EXPECT_EQ(got.count("lm_head.weight"), 0U);
  for (const auto& [name, values] : want) {
    ExpectClose(got.at(name), values, Tolerance(DType::kF64, ErrorKind::kEndToEnd));
  }
}

TEST_F(HeadChunksTest, MisuseThrows) {
  EXPECT_THAT([&] { Make(true, -1, context_); }, Says(HasSubstr("head_chunks must be 0")));
  const auto adapted = Make(false, 2, context_);
  AddLora(*adapted, {.rank = 2, .targets = {"lm_head"}});
  const Tensor logits = (*adapted)(tokens_);
  EXPECT_THAT([&] { CrossEntropyLoss()(logits, targets_); }, Says(HasSubstr("has adapters")));
  auto gone = Make(false, 2, context_);
  const Tensor late = (*gone)(tokens_);
  gone.reset();
  EXPECT_THAT([&] { CrossEntropyLoss()(late, targets_); }, Says(HasSubstr("has been destroyed")));
  const auto model = Make(false, 2, context_);
  const Tensor used = (*model)(tokens_);
  autograd::Backward(CrossEntropyLoss()(used, targets_));
  EXPECT_THAT([&] { CrossEntropyLoss()(used, targets_); },
              Says(HasSubstr("compute the loss before backward")));
}

}  // namespace head_chunks_test
}  // namespace apogee::nn
