// SPDX-License-Identifier: Apache-2.0

// Every family of models against straight loops over doubles: logits and loss, and gradients
// against finite differences of these loops.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "apogee/autograd/engine.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/nn/families/family_cases.h"

namespace apogee::nn {
namespace families_test {

constexpr int64_t kBatch = 2, kTokens = 9;
constexpr double kExact = 1e-11;    // of logits and losses
constexpr double kGradient = 2e-9;  // of finite differences
constexpr int64_t kIgnored = -100;

using Weights = std::map<std::string, Row>;

// Numbers in (-1, 1).
class Noise {
 public:
  explicit Noise(uint32_t seed) : engine_(seed) {}
  double Next() { return (static_cast<double>(engine_()) + 0.5) / 2147483648.0 - 1; }

 private:
  std::mt19937 engine_;
};

bool IsNorm(const std::string& name) {
  return name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos ||
         name.find("LayerNorm") != std::string::npos;
}

// Random values for every parameter: no norm has weights 1, and no bias is 0.
Weights Randomize(Module& model, bool norms_around_zero) {
  Noise noise(20261);
  Weights weights;
  for (const ParameterPtr& parameter : model.Parameters()) {
    Row& values = weights[parameter->name()];
    const bool around_one =
        IsNorm(parameter->name()) && parameter->name().ends_with("weight") && !norms_around_zero;
    double* data = parameter->data().data<double>();
    for (int64_t i = 0; i < parameter->shape().numel(); ++i) {
      data[i] = (around_one ? 1 : 0) + 0.5 * noise.Next();
      values.push_back(data[i]);
    }
  }
  return weights;
}

HfModel Make(const std::string& config) {
  HfModel hf = ValueOrThrow(MakeHfModel(config, "config.json", [](const std::string&) {}));
  hf.module->Initialize(CpuContext(), {.seed = 1, .dtype = DType::kF64});
  return hf;
}

void ExpectNear(const Tensor& got, const Row& want) {
  const Row values = got.Detach().ToVector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(values[i], want[i], kExact * std::max(1.0, std::abs(want[i]))) << "logit " << i;
  }
}

// Some elements of every gradient, the largest among them, against the reference's loss.
// `is_constant`: elements whose gradient must be 0 whatever the differences are.
void ExpectGradients(const Module& model, const Weights& weights,
                     const std::function<double(const Weights&)>& loss,
                     const std::function<bool(const std::string&, size_t)>& is_constant) {
  for (const ParameterPtr& parameter : model.Parameters()) {
    // An expert without tokens: the differences must be 0.
    const bool may_be_absent = parameter->name().find(".experts.") != std::string::npos;
    ASSERT_TRUE(parameter->has_grad() || may_be_absent) << parameter->name();
    Row grad(static_cast<size_t>(parameter->shape().numel()));
    if (parameter->has_grad()) grad = parameter->grad().ToVector<double>();
    const auto largest = static_cast<size_t>(
        std::ranges::max_element(grad, {}, [](double g) { return std::abs(g); }) - grad.begin());
    for (const size_t i : {largest, grad.size() / 3, grad.size() - 1}) {
      if (is_constant(parameter->name(), i)) {
        EXPECT_EQ(grad[i], 0) << parameter->name() << "[" << i << "]";
        continue;
      }
      const auto at = [&](double step) {
        Weights moved = weights;
        moved[parameter->name()][i] += step;
        return loss(moved);
      };
      constexpr double h = 2e-5;
      const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      ASSERT_NEAR(grad[i], slope, kGradient * std::max(1.0, std::abs(slope)))
          << parameter->name() << "[" << i << "]";
    }
  }
}

bool NoneIsConstant(const std::string&, size_t) { return false; }

class DecoderFamilyTest : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(DecoderFamilyTest, ComputesWhatItsPublicationSays) {
  const FamilyCase& family = GetParam();
  const HfModel hf = Make(family.config);
  EXPECT_EQ(hf.vocab_size, static_cast<int64_t>(kVocab));
  EXPECT_EQ(hf.max_tokens, static_cast<int64_t>(kPositions));
  const Weights weights = Randomize(*hf.module, family.name.starts_with("gemma"));
  Folder folder(weights);
  const Transformer reference = family.make(folder);
  EXPECT_THAT(folder.Left(), ::testing::IsEmpty());

  Noise noise(7);
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < kBatch * kTokens; ++i) {
    const auto draw = [&] { return static_cast<int64_t>((noise.Next() + 1) / 2 * kVocab); };
    tokens.push_back(i == 4 ? kPad : draw());
    targets.push_back(i % 5 == 3 ? kIgnored : draw());
  }
  const auto sequence = [&](int64_t sample) {
    const auto first = tokens.begin() + sample * kTokens;
    return std::vector<int64_t>(first, first + kTokens);
  };
  const auto loss_of = [&](const Transformer& t) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t sample = 0; sample < kBatch; ++sample) {
      const Rows logits = t.Logits(sequence(sample));
      for (int64_t i = 0; i < kTokens; ++i) {
        const int64_t target = targets[static_cast<size_t>(sample * kTokens + i)];
        if (target == kIgnored) continue;
        sum += CrossEntropyOf(logits[static_cast<size_t>(i)], target);
        ++count;
      }
    }
    return sum / static_cast<double>(count);
  };

  const Shape shape{kBatch, kTokens};
  const Tensor logits = (*hf.module)(Tensor::FromVector<int64_t>(tokens, shape, CpuContext()));
  Row want;
  for (int64_t sample = 0; sample < kBatch; ++sample) {
    for (const Row& row : reference.Logits(sequence(sample))) {
      want.insert(want.end(), row.begin(), row.end());
    }
  }
  ExpectNear(logits, want);
  const Tensor loss =
      CrossEntropyLoss()(logits, Tensor::FromVector<int64_t>(targets, shape, CpuContext()));
  EXPECT_NEAR(loss.Item(), loss_of(reference), kExact);

  autograd::Backward(loss);
  ExpectGradients(
      *hf.module, weights,
      [&](const Weights& moved) {
        Folder other(moved);
        return loss_of(family.make(other));
      },
      [&](const std::string& name, size_t i) {
        return name == family.padded_table && static_cast<int64_t>(i / kHidden) == kPad;
      });
  if (family.padded_table.empty()) return;
  const Row grad = hf.module->FindParameter(family.padded_table)->grad().ToVector<double>();
  for (size_t i = 0; i < kHidden; ++i) EXPECT_EQ(grad[kPad * kHidden + i], 0);
}

std::string NameOf(const ::testing::TestParamInfo<FamilyCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(LlamaFamilies, DecoderFamilyTest, ::testing::ValuesIn(LlamaCases()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(GptFamilies, DecoderFamilyTest, ::testing::ValuesIn(GptCases()), NameOf);

// With padding and two texts in a sequence, and without.
TEST(EncoderFamilyTest, Bert) {
  const HfModel hf = Make(R"({"model_type": "bert", "vocab_size": 23, "hidden_size": 12,
    "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 16, "layer_norm_eps": 1e-3, "pad_token_id": null,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})");
  const Weights weights = Randomize(*hf.module, false);
  Folder folder(weights);
  const Transformer reference = MakeBert(folder);
  EXPECT_THAT(folder.Left(), ::testing::IsEmpty());
  const std::vector<int64_t> tokens = {3, 22, 0, 7, 7, 11}, targets = {1, kIgnored, 4, 9, 20, 2};
  const std::vector<int64_t> padded = {1, 1, 0, 1, 1, 0}, second = {0, 0, 0, 1, 1, 1};
  const auto logits_of = [&](const Transformer& t, const std::vector<int64_t>& mask,
                             const std::vector<int64_t>& types) {
    Rows xs, logits;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto type = t.weights.at("types").begin() + types[i] * static_cast<int64_t>(kHidden);
      xs.push_back(t.Embedded(tokens[i], i, Row(type, type + kHidden)));
    }
    for (const Row& x : t.Body(xs, mask)) logits.push_back(t.Head(x));
    return logits;
  };
  const auto flat = [](const Rows& rows) {
    Row all;
    for (const Row& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  };
  const auto tensor = [](const std::vector<int64_t>& values) {
    return Tensor::FromVector<int64_t>(values, {1, static_cast<int64_t>(values.size())},
                                       CpuContext());
  };
  ExpectNear((*hf.module)(tensor(tokens)),
             flat(logits_of(reference, {}, std::vector<int64_t>(tokens.size(), 0))));
  const Tensor logits = (*hf.module)({{"tokens", tensor(tokens)},
                                      {"attention_mask", tensor(padded)},
                                      {"token_type_ids", tensor(second)}})
                            .at("logits");
  ExpectNear(logits, flat(logits_of(reference, padded, second)));
  autograd::Backward(CrossEntropyLoss()(logits, tensor(targets)));
  ExpectGradients(
      *hf.module, weights,
      [&](const Weights& moved) {
        Folder other(moved);
        const Rows rows = logits_of(MakeBert(other), padded, second);
        double sum = 0;
        for (size_t i = 0; i < targets.size(); ++i) {
          if (targets[i] != kIgnored) sum += CrossEntropyOf(rows[i], targets[i]);
        }
        return sum / 5;
      },
      NoneIsConstant);
}

TEST(EncoderFamilyTest, Vit) {
  constexpr size_t kImage = 6, kPatch = 2, kChannels = 2, kSide = kImage / kPatch;
  const HfModel hf = Make(R"({"model_type": "vit", "image_size": 6, "patch_size": 2,
    "num_channels": 2, "num_labels": 3, "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 3, "layer_norm_eps": 1e-3})");
  const Weights weights = Randomize(*hf.module, false);
  Folder folder(weights);
  const Transformer reference = MakeVit(folder);
  EXPECT_THAT(folder.Left(), ::testing::IsEmpty());
  Noise noise(3);
  Row pixels;
  for (size_t i = 0; i < kChannels * kImage * kImage; ++i) pixels.push_back(noise.Next());
  const auto logits_of = [&](const Transformer& t) {
    const Row& positions = t.weights.at("positions");
    const auto with_position = [&](const Row& x, size_t index) {
      const auto begin = positions.begin() + static_cast<int64_t>(index * kHidden);
      return Sum(x, Row(begin, begin + kHidden));
    };
    Rows xs = {with_position(t.weights.at("class"), 0)};
    for (size_t patch = 0; patch < kSide * kSide; ++patch) {
      Row values;  // [channels, height, width], as the kernel
      for (size_t i = 0; i < kChannels * kPatch * kPatch; ++i) {
        const size_t channel = i / (kPatch * kPatch);
        const size_t y = patch / kSide * kPatch + i / kPatch % kPatch;
        const size_t x = patch % kSide * kPatch + i % kPatch;
        values.push_back(pixels[(channel * kImage + y) * kImage + x]);
      }
      xs.push_back(with_position(t.Linear("patch", values), patch + 1));
    }
    return t.Head(t.Body(xs)[0]);
  };
  const Tensor logits = (*hf.module)(
      Tensor::FromVector<double>(pixels, {1, kChannels, kImage, kImage}, CpuContext()));
  ExpectNear(logits, logits_of(reference));
  autograd::Backward(
      CrossEntropyLoss()(logits, Tensor::FromVector<int64_t>({2}, {1}, CpuContext())));
  ExpectGradients(
      *hf.module, weights,
      [&](const Weights& moved) {
        Folder other(moved);
        return CrossEntropyOf(logits_of(MakeVit(other)), 2);
      },
      NoneIsConstant);
}

}  // namespace families_test
}  // namespace apogee::nn
