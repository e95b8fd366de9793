// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/layer_models.h"

#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/rng.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/convolution.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/recurrent.h"

namespace apogee::matrix {
namespace {

using nn::Linear;
using enum nn::parallel::ParallelStyle;

constexpr int64_t kDim = 16, kHeads = 4;

class EncoderBlock : public nn::Module {
 public:
  EncoderBlock() {
    // The loss does not depend on a bias of the keys.
    q_ = Register("q", std::make_shared<Linear>(kDim, kDim));
    k_ = Register("k", std::make_shared<Linear>(kDim, kDim, nn::LinearOptions{.bias = false}));
    v_ = Register("v", std::make_shared<Linear>(kDim, kDim));
    out_ = Register("out", std::make_shared<Linear>(kDim, kDim));
    norm1_ = Register("norm1", std::make_shared<nn::LayerNorm>(kDim));
    up_ = Register("up", std::make_shared<Linear>(
                             kDim, 2 * kDim, nn::LinearOptions{.activation = Activation::kGelu}));
    down_ = Register("down", std::make_shared<Linear>(2 * kDim, kDim));
    norm2_ = Register("norm2", std::make_shared<nn::LayerNorm>(kDim));
  }

  // hidden [B, T, kDim]; mask u8 [B, 1, 1, T], 1 for a word.
  nn::NamedTensors ForwardNamed(const nn::NamedTensors& in) override {
    const Tensor& x = in.at("hidden");
    const Tensor attended = autograd::Attention(Heads((*q_)(x)), Heads((*k_)(x)), Heads((*v_)(x)),
                                                {.causal = false, .mask = in.at("mask")});
    const Tensor joined =
        autograd::View(attended, {x.size(0), x.size(1), attended.size(2) * attended.size(3)});
    const Tensor h = (*norm1_)(autograd::Add(x, (*out_)(joined)));
    return {{"hidden", (*norm2_)(autograd::Add(h, (*down_)((*up_)(h))))}};
  }

 private:
  // A rank of a tensor-parallel group has some of the heads.
  static Tensor Heads(const Tensor& x) {
    constexpr int64_t kHeadDim = kDim / kHeads;
    return autograd::View(x, {x.size(0), x.size(1), x.size(2) / kHeadDim, kHeadDim});
  }

  std::shared_ptr<Linear> q_, k_, v_, out_, up_, down_;
  std::shared_ptr<nn::LayerNorm> norm1_, norm2_;
};

class Encoder : public nn::Module {
 public:
  Encoder()
      : embed_(Register("embed", std::make_shared<nn::Embedding>(kTinyVocab, kDim))),
        blocks_(Register("blocks", std::make_shared<nn::ModuleList<EncoderBlock>>())),
        head_(Register("head", std::make_shared<Linear>(kDim, kTinyVocab))),
        places_(RegisterParameter("places", {kTinyTokens, kDim}, nn::Init::Normal(0, 1))) {
    for (int i = 0; i < 2; ++i) blocks_->Add(std::make_shared<EncoderBlock>());
    for (const char* layer : {"up", "down"}) {
      SetInit(std::string("blocks.*.") + layer + ".weight", "xavier_uniform");
    }
  }

  // tokens [B, kTinyTokens] -> logits [B, kTinyTokens, kTinyVocab]. Ids from 1 to 4 are padding,
  // but for the first of a sequence.
  Tensor Forward(const Tensor& tokens) override {
    const std::vector<int64_t> ids = tokens.ToVector<int64_t>();
    std::vector<uint8_t> is_word;
    for (size_t i = 0; i < ids.size(); ++i) is_word.push_back(i % kTinyTokens == 0 || ids[i] > 4);
    const Tensor mask =
        Tensor::FromVector(is_word, {tokens.size(0), 1, 1, tokens.size(1)}, tokens.context());
    Tensor x = autograd::Add((*embed_)(tokens), places_->value());
    for (const auto& block : *blocks_) {
      x = (*block)({{"hidden", x}, {"mask", mask}}).at("hidden");
    }
    return (*head_)(x);
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::shared_ptr<nn::ModuleList<EncoderBlock>> blocks_;
  std::shared_ptr<Linear> head_;
  nn::ParameterPtr places_;
};

using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>;

constexpr int64_t kSide = 6, kClasses = 5;

}  // namespace

std::unique_ptr<nn::Module> EncoderWorkload::MakeModel() const {
  return std::make_unique<Encoder>();
}

std::optional<nn::parallel::ParallelPlan> EncoderWorkload::plan() const {
  nn::parallel::ParallelPlan plan{.name = "encoder", .rules = {}};
  for (const char* name : {"q", "k", "v", "out"}) {
    plan.rules.push_back({.pattern = std::string("blocks.*.") + name,
                          .style = std::string(name) == "out" ? kRow : kColumn,
                          .units = kHeads,
                          .unit_name = "heads"});
  }
  plan.rules.push_back({.pattern = "blocks.*.up", .style = kColumn});
  plan.rules.push_back({.pattern = "blocks.*.down", .style = kRow});
  plan.rules.push_back({.pattern = "embed", .style = kVocabulary});
  return plan;
}

std::unique_ptr<nn::Module> GruWorkload::MakeModel() const {
  return std::make_unique<nn::Sequential>(
      NamedModules{{"embed", std::make_shared<nn::Embedding>(kTinyVocab, 8)},
                   {"gru1", std::make_shared<nn::Gru>(8, 12)},
                   {"lstm", std::make_shared<nn::Lstm>(12, 8)},
                   {"norm", std::make_shared<nn::LayerNorm>(8)},
                   {"head", std::make_shared<Linear>(8, kTinyVocab)}});
}

std::optional<nn::parallel::ParallelPlan> GruWorkload::plan() const {
  return nn::parallel::ParallelPlan{.name = "gru",
                                    .rules = {{.pattern = "embed", .style = kVocabulary},
                                              {.pattern = "gru1", .style = kColumnGather},
                                              {.pattern = "lstm", .style = kColumnGather},
                                              {.pattern = "head", .style = kVocabulary}},
                                    .output_module = "head"};
}

std::unique_ptr<nn::Module> CnnWorkload::MakeModel() const {
  const nn::ConvOptions same{.same_padding = true};
  const nn::ConvOptions depthwise{.padding = 1, .groups = 4};
  // Without biases before batch norms: the loss does not depend on them.
  return std::make_unique<nn::Sequential>(
      NamedModules{{"conv1", std::make_shared<nn::Conv2d>(1, 8, 3, same)},
                   {"gelu", nn::Function(autograd::Gelu)},
                   {"conv2", std::make_shared<nn::Conv2d>(8, 4, 3, same, false)},
                   {"norm1", std::make_shared<nn::BatchNorm>(4)},
                   {"pool", std::make_shared<nn::MaxPool2d>(2)},
                   {"depthwise", std::make_shared<nn::Conv2d>(4, 4, 3, depthwise)},
                   {"norm2", std::make_shared<nn::GroupNorm>(2, 4)},
                   {"silu", nn::Function(autograd::Silu)},
                   {"flatten", std::make_shared<nn::Flatten>()},
                   {"head", std::make_shared<Linear>(4 * kSide * kSide / 4, kClasses)}});
}

std::optional<nn::parallel::ParallelPlan> CnnWorkload::plan() const {
  return nn::parallel::ParallelPlan{
      .name = "cnn",
      .rules = {{.pattern = "conv1", .style = kColumn}, {.pattern = "conv2", .style = kRow}}};
}

data::Batch CnnWorkload::Batch(const ContextPtr& context, const SampleRange& range) const {
  std::vector<double> pixels;
  std::vector<int64_t> classes;
  for (int64_t sample = range.first; sample < range.first + range.count; ++sample) {
    const PhiloxKey key = MakeKey(41, std::to_string(range.step) + "/" + std::to_string(sample));
    const auto kind = static_cast<int64_t>(Philox(key, 0)[0] % kClasses);
    classes.push_back(kind);
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      const double noise = ToUniform(Philox(key, static_cast<uint64_t>(1 + i))[0]);
      pixels.push_back(noise + static_cast<double>(i * (kind + 1) % 3) - 1);
    }
  }
  return {Tensor::FromVector(pixels, {range.count, 1, kSide, kSide}, context),
          Tensor::FromVector(classes, {range.count}, context)};
}

}  // namespace apogee::matrix
