// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/convolution.h"

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/linear.h"

namespace apogee::nn::parallel {
namespace {

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
  wide.input_grad_dtype = ComputeDType(x.dtype());
  Tensor y = conv.Apply(x, conv.weight()->value(), autograd::ValueOf(conv.bias()), wide);
  if (const autograd::GraphMeta* meta = autograd::MetaOf(y)) meta->edge.node->set_cut(true);
  return y;
}

Tensor RowConvolution(const Convolution& conv, const Tensor& x_in, const comm::GroupPtr& group) {
  const Tensor x = InputOf(conv, x_in, *conv.weight());
  ConvOptions wide = conv.options();
  wide.out_dtype = ComputeDType(x.dtype());
  Tensor sum = ReduceFromGroup(conv.Apply(x, conv.weight()->value(), {}, wide), group, x.dtype());
  return conv.bias() != nullptr ? AddBias(sum, conv.bias()->value(), /*of_channels=*/true) : sum;
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
