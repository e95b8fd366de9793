// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/norm.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::nn::parallel {
namespace {

using autograd::SavedTensor;

// A parameter that each rank uses for its own heads. Its gradients are added before they are
// rounded.
Tensor OfAllHeads(const Tensor& parameter, const comm::GroupPtr& group) {
  if (group == nullptr || !autograd::NeedsGrad({parameter})) return parameter;
  Tensor copy = CopyToGroup(parameter, group);
  autograd::SetGradDType(copy, ComputeDType(parameter.dtype()));
  return copy;
}

Tensor In(DType dtype, const Tensor& x) { return x.Detach().To(dtype); }

// With n columns on all ranks, rstd = 1 / sqrt(mean(x^2) + eps) and xhat = x rstd:
//   y = xhat w
//   dw = sum over the rows of dy xhat
//   dx = rstd (dy w - xhat mean(dy w xhat))
// Only the means need other ranks' columns.
struct Rows {
  comm::GroupPtr group;
  int64_t columns;  // n
  DType dtype;      // of the statistics

  // [.., c] of that dtype -> [.., 1].
  Tensor Mean(const Tensor& x) const {
    const Tensor sums = ops::Sum(x, ops::Reduction("rms norm of columns", x.shape(), {-1}),
                                 /*keep_dims=*/true, dtype, 1.0 / static_cast<double>(columns));
    if (group != nullptr) group->AllReduce(sums);
    return sums;
  }
  Tensor Weight(const Tensor& weight, double offset) const {
    const Tensor wide = In(dtype, weight);
    return offset == 0 ? wide : ops::Add(wide, Tensor::Full({1}, dtype, offset, weight.context()));
  }
};

class ColumnNormNode : public autograd::Node {
 public:
  ColumnNormNode(const Tensor& x, const Tensor& weight, const Tensor& rstd, Rows rows,
                 double weight_offset)
      : x_(x),
        weight_(weight),
        rstd_(rstd),
        rows_(std::move(rows)),
        weight_offset_(weight_offset),
        weight_grad_dtype_(autograd::GradDType(weight)) {}
  const char* name() const override { return "rms_norm_of_columns"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const Tensor x = x_.Take(context), weight = weight_.Take(context), rstd = rstd_.Take(context);
    const Tensor normal = ops::Mul(In(rows_.dtype, x), rstd);
    const Tensor dy = In(rows_.dtype, grads[0]);
    std::vector<Tensor> result(2);
    if (wants(0)) {
      const Tensor dnormal = ops::Mul(dy, rows_.Weight(weight, weight_offset_));
      const Tensor mean = rows_.Mean(ops::Mul(dnormal, normal));
      result[0] = In(x.dtype(), ops::Mul(ops::Sub(dnormal, ops::Mul(normal, mean)), rstd));
    }
    if (wants(1)) result[1] = ops::SumLeading(ops::Mul(dy, normal), 1, weight_grad_dtype_);
    return result;
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&x_, &weight_, &rstd_}) saved->Reset();
  }

 private:
  SavedTensor x_, weight_, rstd_;
  Rows rows_;
  double weight_offset_;
  DType weight_grad_dtype_;
};

}  // namespace

Tensor RmsNormOfHeads(const Tensor& x, const Tensor& weight, double eps,
                      const comm::GroupPtr& group, double weight_offset) {
  const Tensor shared = OfAllHeads(weight, group);
  if (weight_offset == 0) return autograd::RmsNorm(x, shared, eps);
  const DType wide = ComputeDType(weight.dtype());
  const Tensor offset = Tensor::Full({1}, wide, weight_offset, weight.context());
  const Tensor y = autograd::RmsNorm(autograd::Cast(x, wide),
                                     autograd::Add(autograd::Cast(shared, wide), offset), eps);
  return autograd::Cast(y, weight.dtype());
}

Tensor LayerNormOfHeads(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        const comm::GroupPtr& group) {
  return autograd::LayerNorm(x, OfAllHeads(weight, group),
                             bias.defined() ? OfAllHeads(bias, group) : bias, eps);
}

Tensor RmsNormOfColumns(const Tensor& x_in, const Tensor& weight, double eps,
                        const comm::GroupPtr& group, double weight_offset) {
  APOGEE_CHECK(x_in.defined() && x_in.rank() >= 1 && weight.defined() &&
                   weight.shape() == Shape{x_in.size(-1)},
               "rms norm of columns: needs x [.., columns] and weight [columns], got ",
               x_in.shape(), " and ", weight.shape());
  APOGEE_CHECK(x_in.dtype() == weight.dtype() ||
                   (x_in.dtype() == DType::kF32 && ComputeDType(weight.dtype()) == DType::kF32),
               "rms norm of columns: x is ", DTypeName(x_in.dtype()), " and the weight ",
               DTypeName(weight.dtype()),
               "; they must be equal, or x f32 and the weight of 16 bits");
  const Tensor x = x_in.Detach().Contiguous();
  const int64_t ranks = group == nullptr ? 1 : group->size();
  const Rows rows{group, ranks * x.size(-1), ComputeDType(x.dtype())};
  const Tensor wide = In(rows.dtype, x);
  const Tensor mean = rows.Mean(ops::Mul(wide, wide));
  const Tensor rstd = ops::UnaryForward(
      UnaryOp::kRsqrt, ops::Add(mean, Tensor::Full({1}, rows.dtype, eps, x.context())));
  const Tensor normal = ops::Mul(wide, rstd);
  Tensor y = In(weight.dtype(), ops::Mul(normal, rows.Weight(weight, weight_offset)));
  if (autograd::NeedsGrad({x_in, weight})) {
    autograd::Attach(y, std::make_shared<ColumnNormNode>(x, weight, rstd, rows, weight_offset),
                     {x_in, weight});
    // As autograd::RmsNorm of an x that is wider than the weight.
    if (x.dtype() == rows.dtype) autograd::SetGradDType(y, rows.dtype);
  }
  return y;
}

}  // namespace apogee::nn::parallel
