// SPDX-License-Identifier: Apache-2.0

// A batch of packed documents trains like the documents alone: losses and gradients in f64.
#include "apogee/autograd/documents.h"

#include <gmock/gmock.h>

#include <map>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/nn/tiny_models.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace documents_test {

using apogee::testing::Says;
using module_test::TinyGpt2;
using module_test::TinyLlama;
using ::testing::HasSubstr;
using Tokens = std::vector<int64_t>;

constexpr int64_t kLength = 8, kVocab = 17;
// The documents of two sequences.
const std::vector<std::vector<int64_t>> kLengths = {{3, 1, 4}, {2, 6}};

struct Batch {
  Tokens tokens, targets, starts;
};
Batch PackedBatch() {
  Batch batch;
  for (const auto& lengths : kLengths) {
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      for (int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<int64_t>(batch.tokens.size());
        batch.tokens.push_back((at * at + 3) % kVocab);
        batch.targets.push_back((5 * at + 1) % kVocab);
        batch.starts.push_back(begin);
      }
      begin += length;
    }
  }
  return batch;
}

Tensor AsTensor(const Tokens& values, const Shape& shape) {
  return Tensor::FromVector<int64_t>(values, shape, CpuContext());
}

using Gradients = std::map<std::string, std::vector<double>>;
Gradients TakeGradients(Module& model) {
  Gradients gradients;
  for (const ParameterPtr& parameter : model.Parameters()) {
    gradients[parameter->name()] = parameter->grad().ToVector<double>();
    parameter->set_grad(Tensor());
  }
  return gradients;
}

template <typename Model>
void ExpectDocumentsAlone(Model model) {
  const Batch batch = PackedBatch();
  const CrossEntropyLoss criterion;
  const Shape shape{2, kLength};
  const auto packed_logits = [&] {
    return model({{"tokens", AsTensor(batch.tokens, shape)},
                  {"starts", AsTensor(batch.starts, shape)}})
        .at("logits");
  };
  // Two micro-batches are in flight: one packed, one of whole sequences.
  const Tensor loss = criterion(packed_logits(), AsTensor(batch.targets, shape));
  const Tensor whole =
      criterion(model(AsTensor(batch.tokens, shape)), AsTensor(batch.targets, shape));
  autograd::Backward(loss);
  const Gradients packed = TakeGradients(model);
  autograd::Backward(whole);
  TakeGradients(model);

  double total = 0;
  size_t at = 0;
  for (const auto& lengths : kLengths) {
    for (const int64_t length : lengths) {
      const auto part = [&](const Tokens& all) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
        return AsTensor(Tokens(begin, begin + length), {1, length});
      };
      const double share = static_cast<double>(length) / (2 * kLength);
      const Tensor alone =
          autograd::Scale(criterion(model(part(batch.tokens)), part(batch.targets)), share);
      total += alone.Item();
      autograd::Backward(alone);
      at += static_cast<size_t>(length);
    }
  }
  EXPECT_NEAR(loss.Item(), total, 1e-12);
  EXPECT_GT(std::abs(whole.Item() - total), 1e-6);  // documents do matter
  for (const auto& [name, gradient] : TakeGradients(model)) {
    SCOPED_TRACE(name);
    ExpectClose(packed.at(name), gradient, 1e-12);
  }
}

TEST(PackedDocumentsTest, Gpt2) {
  for (const bool recompute : {false, true}) {
    Gpt2Config config = TinyGpt2();
    config.recompute = recompute;
    Gpt2 model(config);
    model.SetInit("*.weight", Init::Normal(0, 0.3));
    model.Initialize(CpuContext(), {.seed = 3, .dtype = DType::kF64});
    ExpectDocumentsAlone<Gpt2&>(model);
  }
}

TEST(PackedDocumentsTest, Llama) {
  for (const bool recompute : {false, true}) {
    LlamaConfig config = TinyLlama();
    config.recompute = recompute;
    Llama model(config);
    model.SetInit("*proj.weight", Init::Normal(0, 0.3));
    model.Initialize(CpuContext(), {.seed = 3, .dtype = DType::kF64});
    ExpectDocumentsAlone<Llama&>(model);
  }
}

// Takes documents, but has a layer in which tokens mix.
class Mixing : public Module {
 public:
  Mixing() : gru_(Register("gru", std::make_shared<Gru>(4, 4))) {}
  Tensor Forward(const Tensor& x) override { return x; }
  bool takes_documents() const override { return true; }

 private:
  std::shared_ptr<Module> gru_;
};

TEST(PackedDocumentsTest, Misuse) {
  Gpt2 model(TinyGpt2());
  model.Initialize(CpuContext(), {.seed = 3});
  const Tensor tokens = AsTensor(Tokens(8, 1), {1, 8}), starts = AsTensor(Tokens(8, 0), {1, 8});
  const auto call = [](Module& module, const NamedTensors& inputs) {
    return [&module, inputs] { module(inputs); };
  };
  EXPECT_EQ(model({{"tokens", tokens}}).at("logits").ToVector<float>(),
            model(tokens).ToVector<float>());
  EXPECT_THAT(call(model, {{"tokens", tokens}, {"start", starts}}),
              Says(HasSubstr("\"starts\"; got start, tokens")));
  EXPECT_THAT(call(model, {{"starts", starts}}), Says(HasSubstr("takes \"tokens\"")));
  EXPECT_THAT(call(model, {{"tokens", tokens}, {"starts", starts.Slice(1, 0, 7)}}),
              Says(HasSubstr("starts [1, 7] are not those of 1 sequences of 8 tokens")));
  EXPECT_THAT(call(model, {{"tokens", tokens}, {"starts", AsTensor(Tokens(8, 1), {1, 8})}}),
              Says(HasSubstr("starts[0, 0] is 1")));
  EXPECT_EQ(autograd::CurrentDocuments(), nullptr);
  Linear linear(8, 2);
  linear.Initialize(CpuContext(), {.seed = 3});
  EXPECT_THAT(call(linear, {{"tokens", tokens}, {"starts", starts}}),
              Says(HasSubstr("takes one tensor, not named ones")));
  EXPECT_THAT([&] { linear.CheckTakesDocuments(); }, Says(HasSubstr("would be ignored")));
  Mixing mixing;
  mixing.Initialize(CpuContext(), {.seed = 3});
  EXPECT_THAT(call(mixing, {{"tokens", tokens}, {"starts", starts}}),
              Says(HasSubstr("module \"gru\" mixes tokens of different documents")));
}

}  // namespace documents_test
}  // namespace apogee::nn
