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
  void DescribeConfig(ConfigTexts& texts) const override;
  // The function of the class, with another weight, bias and options: for a part of the layer.
  virtual Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const ConvOptions& options) const = 0;
  virtual bool transposed() const = 0;
  const ParameterPtr& weight() const { return weight_; }
  // Null without a bias.
  const ParameterPtr& bias() const { return bias_; }
  const ConvOptions& options() const { return options_; }

 protected:
  // `kernel`: one size, or height and width. The first two dims of the weight are [out, in /
  // groups], or [in, out / groups] if transposed.
  Convolution(int64_t in, int64_t out, const std::vector<int64_t>& kernel,
              const ConvOptions& options, bool bias, bool transposed);

 private:
  ConvOptions options_;
  ParameterPtr weight_, bias_;
};

// weight [out, in / groups, kernel height, kernel width].
class Conv2d : public Convolution {
 public:
  Conv2d(int64_t in, int64_t out, Extent kernel, const ConvOptions& options = {}, bool bias = true);
  Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const ConvOptions& options) const override;
  bool transposed() const override { return false; }
};

// weight [out, in / groups, kernel].
class Conv1d : public Convolution {
 public:
  Conv1d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options = {},
         bool bias = true);
  Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const ConvOptions& options) const override;
  bool transposed() const override { return false; }
};

// weight [in, out / groups, kernel height, kernel width].
class ConvTranspose2d : public Convolution {
 public:
  ConvTranspose2d(int64_t in, int64_t out, Extent kernel, const ConvOptions& options = {},
                  bool bias = true);
  Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const ConvOptions& options) const override;
  bool transposed() const override { return true; }
};

// weight [in, out / groups, kernel].
class ConvTranspose1d : public Convolution {
 public:
  ConvTranspose1d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options = {},
                  bool bias = true);
  Tensor Apply(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const ConvOptions& options) const override;
  bool transposed() const override { return true; }
};

// What the four pools have in common.
class Pool : public Module, public Configured {
 public:
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;

 protected:
  Pool(Extent kernel, const PoolOptions& options) : kernel_(kernel), options_(options) {}
  virtual Tensor Compute(const Tensor& x) const = 0;
  Extent kernel_;
  PoolOptions options_;
};

class MaxPool2d : public Pool {
 public:
  explicit MaxPool2d(Extent kernel, const PoolOptions& options = {}) : Pool(kernel, options) {}

 protected:
  Tensor Compute(const Tensor& x) const override {
    return autograd::MaxPool2d(x, kernel_, options_);
  }
};

class AvgPool2d : public Pool {
 public:
  explicit AvgPool2d(Extent kernel, const PoolOptions& options = {}) : Pool(kernel, options) {}

 protected:
  Tensor Compute(const Tensor& x) const override {
    return autograd::AvgPool2d(x, kernel_, options_);
  }
};

class MaxPool1d : public Pool {
 public:
  explicit MaxPool1d(int64_t kernel, const PoolOptions& options = {}) : Pool(kernel, options) {}

 protected:
  Tensor Compute(const Tensor& x) const override {
    return autograd::MaxPool1d(x, kernel_.width, options_);
  }
};

class AvgPool1d : public Pool {
 public:
  explicit AvgPool1d(int64_t kernel, const PoolOptions& options = {}) : Pool(kernel, options) {}

 protected:
  Tensor Compute(const Tensor& x) const override {
    return autograd::AvgPool1d(x, kernel_.width, options_);
  }
};

// [N, ..] -> [N, the product of the other dims].
class Flatten : public Module {
 public:
  Tensor Forward(const Tensor& x) override;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_CONVOLUTION_H_
