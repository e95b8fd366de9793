// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/linear.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/sequence_functions.h"
#include "apogee/tensor/ops/convolution.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
namespace {

class AddBiasNode : public autograd::Node {
 public:
  AddBiasNode(const Tensor& bias, bool of_channels)
      : bias_grad_dtype_(autograd::GradDType(bias)), of_channels_(of_channels) {}
  const char* name() const override { return "add_bias"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext&) override {
    if (!wants(1)) return {grads[0], Tensor()};
    return {grads[0], of_channels_ ? ops::SumOfChannels(grads[0], bias_grad_dtype_)
                                   : ops::SumLeading(grads[0], 1, bias_grad_dtype_)};
  }

 private:
  DType bias_grad_dtype_;
  bool of_channels_;
};

// Only sum_of rounds the product, which is one rank's addend; the bias is added after it.
template <typename SumOf>
Tensor RowLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 autograd::WeightLayout layout, const SumOf& sum_of) {
  Tensor sum = sum_of(
      autograd::Linear(x, weight, {}, {.layout = layout, .out_dtype = ComputeDType(x.dtype())}));
  return bias.defined() ? AddBias(sum, bias) : sum;
}

}  // namespace

Tensor AddBias(const Tensor& x, const Tensor& bias, bool of_channels) {
  Tensor row = bias.Detach().To(x.dtype());
  if (of_channels) {
    std::vector<int64_t> column(static_cast<size_t>(x.rank() - 1), 1);
    column[0] = bias.size(0);
    row = row.View(Shape(column));
  }
  Tensor y = ops::Add(x, row);
  if (autograd::NeedsGrad({x, bias})) {
    autograd::Attach(y, std::make_shared<AddBiasNode>(bias, of_channels), {x, bias});
  }
  return y;
}

Tensor ColumnParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const comm::GroupPtr& group, const autograd::LinearOptions& options) {
  if (group == nullptr) return autograd::Linear(x, weight, bias, options);
  return ColumnLinear(CopyToGroup(x, group), weight, bias, options);
}

Tensor ColumnLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const autograd::LinearOptions& options) {
  autograd::LinearOptions wide = options;
  wide.input_grad_dtype = ComputeDType(x.dtype());
  const Tensor y = autograd::Linear(x, weight, bias, wide);
  if (const autograd::GraphMeta* meta = autograd::MetaOf(y)) meta->edge.node->set_cut(true);
  return y;
}

Tensor RowParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const comm::GroupPtr& group, autograd::WeightLayout layout,
                         std::optional<DType> out_dtype) {
  if (group == nullptr) {
    return autograd::Linear(x, weight, bias, {.layout = layout, .out_dtype = out_dtype});
  }
  return RowLinear(x, weight, bias, layout, [&](Tensor product) {
    return ReduceFromGroup(std::move(product), group, out_dtype.value_or(x.dtype()));
  });
}

Tensor RowParallelLinearOfTokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const comm::GroupPtr& group, autograd::WeightLayout layout,
                                 std::optional<DType> out_dtype) {
  return RowLinear(x, weight, bias, layout, [&](const Tensor& product) {
    return ReduceScatterSequence(product, group, out_dtype.value_or(x.dtype()), x.dtype());
  });
}

}  // namespace apogee::nn::parallel
