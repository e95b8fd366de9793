// SPDX-License-Identifier: Apache-2.0

// Layers of convolutional networks. Names, shapes and initialisers are torch's.
//
//   auto conv = std::make_shared<nn::Conv2d>(3, 16, 3, nn::ConvOptions{.padding = 1});
//   auto pool = std::make_shared<nn::MaxPool2d>(2);
//   Tensor h = (*pool)(autograd::Relu((*conv)(x)));         // x [N, 3, 32, 32] -> [N, 16, 16, 16]
//   Tensor rows = (*std::make_shared<nn::Flatten>())(h);    // [N, 4096]
//
// Shapes, dtypes and errors of calls: autograd/functions/convolution.h. Under tensor parallelism a
// convolution that no rule of the plan names throws Error for an input that holds only this rank's
// channels; pools and Flatten take such inputs.
#ifndef APOGEE_NN_CONVOLUTION_H_
#define APOGEE_NN_CONVOLUTION_H_

#include "apogee/autograd/functions/convolution.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

using autograd::ConvOptions;
using autograd::Extent;
using autograd::PoolOptions;

// What the four convolutions have in common. Parameters: "weight" and, with `bias`, "bias" [out],
// both uniform(-b, b) with b = 1 / sqrt(the weight's size(1) times the kernel's size).
class Convolution : public Module, public Configured {
 public:
  Tensor Forward(const Tensor& x) override;
  bool mixes_tokens() const override { return true; }
  void DescribeConfig(ConfigTexts& texts) const override;
  // The function of the class, with another weight, bias and options: for a part of the layer.
  Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const ConvOptions& options) const {
    return function_(x, weight, bias, options);
  }
  bool transposed() const { return transposed_; }
  const ParameterPtr& weight() const { return weight_; }
  // Null without a bias.
  const ParameterPtr& bias() const { return bias_; }
  const ConvOptions& options() const { return options_; }

 protected:
  using Function = Tensor (*)(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const ConvOptions& options);
  // `kernel`: one size, or height and width. The first two dims of the weight are [out, in /
  // groups], or [in, out / groups] if transposed.
  Convolution(Function function, bool transposed, int64_t in, int64_t out,
              const std::vector<int64_t>& kernel, const ConvOptions& options, bool bias);

 private:
  Function function_;
  bool transposed_;
  ConvOptions options_;
  ParameterPtr weight_, bias_;
};

// weight [out, in / groups, kernel height, kernel width].
class Conv2d : public Convolution {
 public:
  Conv2d(int64_t in, int64_t out, Extent kernel, const ConvOptions& options = {}, bool bias = true)
      : Convolution(autograd::Conv2d, /*transposed=*/false, in, out, {kernel.height, kernel.width},
                    options, bias) {}
};

// weight [out, in / groups, kernel].
class Conv1d : public Convolution {
 public:
  Conv1d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options = {}, bool bias = true)
      : Convolution(autograd::Conv1d, /*transposed=*/false, in, out, {kernel}, options, bias) {}
};

// weight [in, out / groups, kernel height, kernel width].
class ConvTranspose2d : public Convolution {
 public:
  ConvTranspose2d(int64_t in, int64_t out, Extent kernel, const ConvOptions& options = {},
                  bool bias = true)
      : Convolution(autograd::ConvTranspose2d, /*transposed=*/true, in, out,
                    {kernel.height, kernel.width}, options, bias) {}
};

// weight [in, out / groups, kernel].
class ConvTranspose1d : public Convolution {
 public:
  ConvTranspose1d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options = {},
                  bool bias = true)
      : Convolution(autograd::ConvTranspose1d, /*transposed=*/true, in, out, {kernel}, options,
                    bias) {}
};

// What the four pools have in common. In one dimension both sizes of the kernel are the length.
class Pool : public Module, public Configured {
 public:
  Tensor Forward(const Tensor& x) override { return function_(x, kernel_, options_); }
  bool mixes_tokens() const override { return true; }
  void DescribeConfig(ConfigTexts& texts) const override;

 protected:
  using Function = Tensor (*)(const Tensor& x, Extent kernel, const PoolOptions& options);
  Pool(Function function, Extent kernel, const PoolOptions& options)
      : function_(function), kernel_(kernel), options_(options) {}

 private:
  Function function_;
  Extent kernel_;
  PoolOptions options_;
};

class MaxPool2d : public Pool {
 public:
  explicit MaxPool2d(Extent kernel, const PoolOptions& options = {})
      : Pool(autograd::MaxPool2d, kernel, options) {}
};

class AvgPool2d : public Pool {
 public:
  explicit AvgPool2d(Extent kernel, const PoolOptions& options = {})
      : Pool(autograd::AvgPool2d, kernel, options) {}
};

class MaxPool1d : public Pool {
 public:
  explicit MaxPool1d(int64_t kernel, const PoolOptions& options = {})
      : Pool(autograd::MaxPool1d, kernel, options) {}
};

class AvgPool1d : public Pool {
 public:
  explicit AvgPool1d(int64_t kernel, const PoolOptions& options = {})
      : Pool(autograd::AvgPool1d, kernel, options) {}
};

// [N, ..] -> [N, the product of the other dims].
class Flatten : public Module {
 public:
  Tensor Forward(const Tensor& x) override;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_CONVOLUTION_H_
