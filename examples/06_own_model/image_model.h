// SPDX-License-Identifier: Apache-2.0

// A convolutional classifier: the model, an op and a loss of its own, its plan for tensor
// parallelism, and synthetic images.
#ifndef APOGEE_EXAMPLES_06_OWN_MODEL_IMAGE_MODEL_H_
#define APOGEE_EXAMPLES_06_OWN_MODEL_IMAGE_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/apogee.h"

namespace own_model {

using namespace apogee;

constexpr int64_t kSide = 16, kNumClasses = 4;
constexpr nn::ConvOptions kSame = {.same_padding = true};

// An op of one's own: x * sigmoid(1.702 x), an approximation of GELU.
struct QuickGelu {
  static constexpr const char* kName = "quick_gelu";

  autograd::Tensors Forward(const autograd::Tensors& in, autograd::Tensors& saved) const {
    saved = {in[0]};
    return {ops::Mul(in[0], Gate(in[0]))};
  }
  autograd::Tensors Backward(const autograd::Tensors& grads, const autograd::Tensors& saved) const {
    const Tensor &x = saved[0], gate = Gate(x);
    const Tensor slope = ops::Sub(gate, ops::Mul(gate, gate));  // of the sigmoid
    return {ops::Mul(grads[0], ops::Add(gate, ops::Mul(ops::Scale(x, 1.702), slope)))};
  }

 private:
  static Tensor Gate(const Tensor& x) {
    return ops::ActivationForward(Activation::kSigmoid, ops::Scale(x, 1.702));
  }
};

// The first convolution. Images are f32; weights have the precision of the run.
class Stem : public nn::Module {
 public:
  explicit Stem(int64_t channels)
      : conv_(Register("conv", std::make_shared<nn::Conv2d>(1, channels, 3, kSame))) {}
  Tensor Forward(const Tensor& x) override {
    return (*conv_)(autograd::Cast(x, conv_->weight()->dtype()));
  }

 private:
  std::shared_ptr<nn::Conv2d> conv_;
};

// norm(x + conv2(op(conv1(x)))), with twice the channels in between.
class ConvBlock : public nn::Module {
 public:
  explicit ConvBlock(int64_t channels)
      : conv1_(Register("conv1", std::make_shared<nn::Conv2d>(channels, 2 * channels, 3, kSame))),
        // Without a bias: the norm would subtract it again.
        conv2_(Register("conv2",
                        std::make_shared<nn::Conv2d>(2 * channels, channels, 3, kSame, false))),
        norm_(Register("norm", std::make_shared<nn::BatchNorm>(channels))) {}

  Tensor Forward(const Tensor& x) override {
    const Tensor h = autograd::Apply(QuickGelu(), {(*conv1_)(x)})[0];
    return (*norm_)(autograd::Add(x, (*conv2_)(h)));
  }

 private:
  std::shared_ptr<nn::Conv2d> conv1_, conv2_;
  std::shared_ptr<nn::BatchNorm> norm_;
};

// Images [samples, 1, kSide, kSide] -> logits [samples, kNumClasses]. A chain of named modules:
// a pipeline may cut it between any two of them.
class ImageClassifier : public nn::Sequential {
 public:
  explicit ImageClassifier(int64_t channels)
      : Sequential({{"stem", std::make_shared<Stem>(channels)},
                    {"block1", std::make_shared<ConvBlock>(channels)},
                    {"pool1", std::make_shared<nn::MaxPool2d>(2)},
                    {"block2", std::make_shared<ConvBlock>(channels)},
                    {"pool2", std::make_shared<nn::AvgPool2d>(kSide / 2)},
                    {"flatten", std::make_shared<nn::Flatten>()},
                    {"head", std::make_shared<nn::Linear>(channels, kNumClasses)}}) {
    SetInit("block*.conv*.weight", "kaiming_normal");
  }
};

// Cuts the channels between the two convolutions of each block.
inline nn::parallel::ParallelPlan ImagePlan() {
  using enum nn::parallel::ParallelStyle;
  return {.name = "image classifier",
          .rules = {{.pattern = "block*.conv1", .style = kColumn},
                    {.pattern = "block*.conv2", .style = kRow}}};
}

// A loss of one's own: focal loss (Lin et al., 2017), the mean of (1 - p)^2 * -log(p) over the
// probabilities p of the targets.
inline Tensor FocalLoss(const Tensor& logits, const Tensor& targets) {
  const Tensor log_probs = autograd::LogSoftmax(logits);
  const Tensor chosen = autograd::Gather(log_probs, 1, targets.View({targets.numel(), 1}));
  const Tensor one = Tensor::Full({1}, logits.dtype(), 1, logits.context());
  const Tensor weight = autograd::Square(autograd::Sub(one, autograd::Exp(chosen)));
  return autograd::Scale(autograd::Mean(autograd::Mul(weight, chosen)), -1);
}

// Stripes across, down or along a diagonal, or a chequerboard, at a random place and in noise.
// Sample i of a step is a pure function of (step, i), so ranks can share a batch in any way.
inline data::Batch ImageBatch(int64_t step, int64_t first, int64_t count,
                              const ContextPtr& context) {
  std::vector<double> pixels;
  std::vector<int64_t> classes;
  for (int64_t sample = first; sample < first + count; ++sample) {
    const PhiloxKey key = MakeKey(3, std::to_string(step) + "/" + std::to_string(sample));
    const auto draw = Philox(key, 0);
    const auto kind = static_cast<int64_t>(draw[0] % kNumClasses);
    const auto shift = static_cast<int64_t>(draw[1] % 4);
    classes.push_back(kind);
    for (int64_t y = 0; y < kSide; ++y) {
      for (int64_t x = 0; x < kSide; ++x) {
        const int64_t down = (y + shift) / 2 % 2, across = (x + shift) / 2 % 2;
        const int64_t value[] = {down, across, (x + y + shift) / 2 % 2, down ^ across};
        const uint32_t noise = Philox(key, static_cast<uint64_t>(1 + y * kSide + x))[0];
        pixels.push_back(static_cast<double>(value[kind]) + 2.0 * noise / 0x1p32 - 1.5);
      }
    }
  }
  return {Tensor::FromVector(pixels, {count, 1, kSide, kSide}, context, DType::kF32),
          Tensor::FromVector(classes, {count}, context)};
}

}  // namespace own_model

#endif  // APOGEE_EXAMPLES_06_OWN_MODEL_IMAGE_MODEL_H_
