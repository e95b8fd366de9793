// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/convolution.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/convolution.h"

namespace apogee::autograd {
namespace {

// A transposed convolution is the input gradient of a convolution, and the other way round.
class ConvNode : public Node {
 public:
  ConvNode(const char* name, bool transposed, const ConvSizes& sizes, const Tensor& x,
           const Tensor& weight, const Tensor& bias, DType input_grad_dtype)
      : name_(name),
        transposed_(transposed),
        sizes_(sizes),
        x_(x),
        weight_(weight),
        weight_shape_(weight.shape()),
        dtype_(weight.dtype()),
        input_grad_dtype_(input_grad_dtype),
        weight_grad_dtype_(GradDType(weight)),
        bias_grad_dtype_(bias.defined() ? GradDType(bias) : weight_grad_dtype_) {}

  const char* name() const override { return name_; }
  bool IsWeightEdge(size_t edge) const override { return edge > 0; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    // A result that is wider than the operands has a wider gradient.
    const Tensor wide = grads[0].Contiguous(), dy = wide.To(dtype_);
    std::vector<Tensor> result(3);
    if (context.part != GradPart::kInputs) {
      const Tensor x = x_.Take(context);
      if (wants(1)) {
        result[1] = ops::ConvBackwardWeight(sizes_, transposed_ ? dy : x, transposed_ ? x : dy,
                                            weight_shape_, weight_grad_dtype_);
      }
      if (wants(2)) result[2] = ops::SumOfChannels(wide, bias_grad_dtype_);
    }
    if (context.part != GradPart::kWeights && wants(0)) {
      const Tensor weight = weight_.Take(context);
      result[0] = transposed_ ? ops::ConvForward(sizes_, dy, weight, {}, input_grad_dtype_)
                              : ops::ConvBackwardInput(sizes_, dy, weight, {}, input_grad_dtype_);
    }
    return result;
  }

  void ReleaseSaved() override {
    x_.Reset();
    weight_.Reset();
  }

 private:
  const char* name_;
  bool transposed_;
  ConvSizes sizes_;
  SavedTensor x_, weight_;
  Shape weight_shape_;
  DType dtype_, input_grad_dtype_, weight_grad_dtype_, bias_grad_dtype_;
};

class MaxPoolNode : public Node {
 public:
  MaxPoolNode(const char* name, const Window& window, const Tensor& index, const Shape& x)
      : name_(name), window_(window), index_(index), x_(x) {}
  const char* name() const override { return name_; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::MaxPoolBackward(window_, index_.Take(context), grads[0], x_)};
  }
  void ReleaseSaved() override { index_.Reset(); }

 private:
  const char* name_;
  Window window_;
  SavedTensor index_;
  Shape x_;
};

// Sets the two numbers of a window's dims. A length has one.
void Set(const char* op, const char* name, int dims, const Extent& extent, int64_t (&to)[2]) {
  APOGEE_CHECK(dims == 2 || extent.height == extent.width, op, ": ", name,
               " of a sequence is one number, got {", extent.height, ", ", extent.width, "}");
  if (dims == 2) to[0] = extent.height;
  to[1] = extent.width;
}

Tensor Conv(const char* name, int dims, bool transposed, const Tensor& x_in, const Tensor& weight,
            const Tensor& bias, const ConvOptions& options) {
  ops::WindowOptions window{
      .dims = dims, .same_padding = options.same_padding, .groups = options.groups};
  Set(name, "stride", dims, options.stride, window.stride);
  Set(name, "padding", dims, options.padding, window.padding);
  Set(name, "dilation", dims, options.dilation, window.dilation);
  Set(name, "output_padding", dims, options.output_padding, window.output_padding);
  const ConvSizes sizes = transposed ? ops::SizesOfTransposedConv(name, x_in, weight, bias, window)
                                     : ops::SizesOfConv(name, x_in, weight, bias, window);
  const Tensor x = x_in.Detach().Contiguous();
  const DType dtype = options.out_dtype.value_or(x.dtype());
  Tensor y = transposed ? ops::ConvBackwardInput(sizes, x, weight, bias, dtype)
                        : ops::ConvForward(sizes, x, weight, bias, dtype);
  if (NeedsGrad({x_in, weight, bias})) {
    const DType input_grad_dtype = options.input_grad_dtype.value_or(x.dtype());
    Attach(y,
           std::make_shared<ConvNode>(name, transposed, sizes, x, weight, bias, input_grad_dtype),
           {x_in, weight, bias});
  }
  return y;
}

Window WindowOf(const char* name, int dims, const Tensor& x, const Extent& kernel,
                const PoolOptions& options) {
  ops::WindowOptions window{.dims = dims};
  int64_t size[2] = {1, 1};
  Set(name, "kernel", dims, kernel, size);
  Set(name, "stride", dims, options.stride.value_or(kernel), window.stride);
  Set(name, "padding", dims, options.padding, window.padding);
  return ops::WindowOfPool(name, x, size, window);
}

Tensor MaxPool(const char* name, int dims, const Tensor& x, const Extent& kernel,
               const PoolOptions& options) {
  const Window window = WindowOf(name, dims, x, kernel, options);
  ops::MaxPoolResult result = ops::MaxPoolForward(window, x);
  Tensor y = std::move(result.y);
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<MaxPoolNode>(name, window, result.index, x.shape()), {x});
  }
  return y;
}

Tensor AvgPool(const char* name, int dims, const Tensor& x, const Extent& kernel,
               const PoolOptions& options) {
  const Window window = WindowOf(name, dims, x, kernel, options);
  Tensor y = ops::AveragePoolForward(window, x, options.count_padding);
  AttachMap(y, name, x,
            [window, count = options.count_padding, shape = x.shape()](const Tensor& dy) {
              return ops::AveragePoolBackward(window, dy, count, shape);
            });
  return y;
}

}  // namespace

Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options) {
  return Conv("conv2d", 2, /*transposed=*/false, x, weight, bias, options);
}

Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options) {
  return Conv("conv1d", 1, /*transposed=*/false, x, weight, bias, options);
}

Tensor ConvTranspose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const ConvOptions& options) {
  return Conv("conv_transpose2d", 2, /*transposed=*/true, x, weight, bias, options);
}

Tensor ConvTranspose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const ConvOptions& options) {
  return Conv("conv_transpose1d", 1, /*transposed=*/true, x, weight, bias, options);
}

Tensor MaxPool2d(const Tensor& x, Extent kernel, const PoolOptions& options) {
  return MaxPool("max_pool2d", 2, x, kernel, options);
}

Tensor AvgPool2d(const Tensor& x, Extent kernel, const PoolOptions& options) {
  return AvgPool("avg_pool2d", 2, x, kernel, options);
}

Tensor MaxPool1d(const Tensor& x, Extent kernel, const PoolOptions& options) {
  return MaxPool("max_pool1d", 1, x, kernel, options);
}

Tensor AvgPool1d(const Tensor& x, Extent kernel, const PoolOptions& options) {
  return AvgPool("avg_pool1d", 1, x, kernel, options);
}

}  // namespace apogee::autograd
