// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/convolution.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/tensor/ops/convolution.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
namespace {

// Unlike autograd::Add, gives the bias's gradient the dtype that the bias's owner asks for.
class AddChannelBiasNode : public autograd::Node {
 public:
  explicit AddChannelBiasNode(const Tensor& bias) : bias_grad_dtype_(autograd::GradDType(bias)) {}
  const char* name() const override { return "add_channel_bias"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext&) override {
    const Tensor dbias = wants(1) ? ops::SumOfChannels(grads[0], bias_grad_dtype_) : Tensor();
    return {grads[0], dbias};
  }

 private:
  DType bias_grad_dtype_;
};

// x [N, C, ..] + bias [C].
Tensor AddChannelBias(const Tensor& x, const Tensor& bias) {
  std::vector<int64_t> column(static_cast<size_t>(x.rank() - 1), 1);
  column[0] = bias.size(0);
  Tensor y = ops::Add(x, bias.Detach().View(Shape(column)));
  if (autograd::NeedsGrad({x, bias})) {
    autograd::Attach(y, std::make_shared<AddChannelBiasNode>(bias), {x, bias});
  }
  return y;
}

// The channels of a sample lie side by side, so those of several ranks are columns of this matrix.
Tensor AsRows(const Tensor& x) {
  const int64_t samples = x.size(0);
  return autograd::View(autograd::Contiguous(x), {samples, samples == 0 ? 0 : x.numel() / samples});
}

Tensor WithChannels(const Tensor& rows, Shape shape, int64_t channels) {
  shape.Set(1, channels);
  return autograd::View(rows, shape);
}

}  // namespace

Tensor ColumnConvolution(const Convolution& conv, const Tensor& copy) {
  const Tensor x = InputOf(conv, copy, *conv.weight());
  ConvOptions wide = conv.options();
  wide.input_grad_dtype = AddendDType(x.dtype());
  const Tensor bias = conv.bias() != nullptr ? conv.bias()->value() : Tensor();
  Tensor y = conv.Apply(x, conv.weight()->value(), bias, wide);
  if (const autograd::GraphMeta* meta = autograd::MetaOf(y)) meta->edge.node->set_cut(true);
  return y;
}

Tensor RowConvolution(const Convolution& conv, const Tensor& x_in, const comm::GroupPtr& group) {
  const Tensor x = InputOf(conv, x_in, *conv.weight());
  ConvOptions wide = conv.options();
  wide.out_dtype = AddendDType(x.dtype());
  Tensor sum = ReduceFromGroup(conv.Apply(x, conv.weight()->value(), {}, wide), group, x.dtype());
  return conv.bias() != nullptr ? AddChannelBias(sum, conv.bias()->value()) : sum;
}

Tensor GatherChannels(const Tensor& x, const comm::GroupPtr& group) {
  return WithChannels(GatherLastDim(AsRows(x), group), x.shape(), x.size(1) * group->size());
}

Tensor SplitChannels(const Tensor& x, const comm::GroupPtr& group) {
  APOGEE_CHECK(x.rank() >= 3 && x.size(1) % group->size() == 0, "split_channels: ", group->size(),
               " ranks do not divide the channels of ", x.shape());
  return WithChannels(SplitLastDim(AsRows(x), group), x.shape(), x.size(1) / group->size());
}

}  // namespace apogee::nn::parallel
