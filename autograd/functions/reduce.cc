// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/reduce.h"

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

class StatisticNode : public Node {
 public:
  StatisticNode(Statistic kind, const Tensor& x, const Tensor& stat, std::vector<int> dims,
                double correction)
      : kind_(kind), x_(x), stat_(stat), dims_(std::move(dims)), correction_(correction) {}
  const char* name() const override {
    return kind_ == Statistic::kVariance ? "var" : "log_sum_exp";
  }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor x = x_.Take(context);
    return {ops::StatisticBackward(kind_, ops::Reduction(name(), x, dims_), stat_.Take(context),
                                   grads[0], correction_)};
  }
  void ReleaseSaved() override {
    x_.Reset();
    stat_.Reset();
  }

 private:
  Statistic kind_;
  SavedTensor x_, stat_;
  std::vector<int> dims_;
  double correction_;
};

class ExtremeNode : public Node {
 public:
  ExtremeNode(const char* name, const Tensor& x, const Tensor& index, std::vector<int> dims)
      : name_(name), shape_(x.shape()), index_(index), dims_(std::move(dims)) {}
  const char* name() const override { return name_; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    // Only the layout of x counts here.
    const Tensor like = Tensor::Zeros({}, grads[0].dtype(), grads[0].context()).Expand(shape_);
    const ops::Reduction over(name_, like, dims_);
    return {over.Restore(ops::ExtremeBackward(index_.Take(context), grads[0], over.outer(),
                                              over.reduce(), over.inner()))};
  }
  void ReleaseSaved() override { index_.Reset(); }

 private:
  const char* name_;
  Shape shape_;
  SavedTensor index_;
  std::vector<int> dims_;
};

Tensor ScaledSum(const char* name, const Tensor& x, const std::vector<int>& dims, bool keep_dims,
                 bool mean) {
  const Tensor whole = x.Detach();
  Tensor y;
  Shape kept;
  double scale = 1;
  {
    const ops::Reduction over(name, whole, dims);
    if (mean) scale = 1.0 / static_cast<double>(over.reduce());
    kept = over.Result(true);
  }
  y = ops::Sum(whole, dims, keep_dims, x.dtype(), scale);
  AttachMap(y, name, x, [scale, kept, shape = x.shape()](const Tensor& dy) {
    const Tensor scaled = scale == 1 ? dy.Contiguous() : ops::Scale(dy, scale);
    return scaled.View(kept).Expand(shape).Contiguous();
  });
  return y;
}

Tensor ExtremeOver(Extreme kind, const char* name, const Tensor& x, const std::vector<int>& dims,
                   bool keep_dims) {
  APOGEE_CHECK(x.defined(), name, ": x is undefined");
  const ops::Reduction over(name, x.Detach(), dims);
  const ops::ExtremeResult result = ops::ExtremeForward(kind, over);
  Tensor y = result.y.View(over.Result(keep_dims));
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<ExtremeNode>(name, x, result.index, dims), {x});
  }
  return y;
}

Tensor StatisticOver(Statistic kind, const char* name, const Tensor& x,
                     const std::vector<int>& dims, bool keep_dims, double correction) {
  APOGEE_CHECK(x.defined(), name, ": x is undefined");
  const ops::Reduction over(name, x.Detach(), dims);
  APOGEE_CHECK(kind != Statistic::kVariance || static_cast<double>(over.reduce()) > correction,
               "var: needs more than ", correction, " elements, got ", over.reduce(),
               " in the dims of shape ", x.shape());
  const ops::StatisticResult result = ops::StatisticForward(kind, over, correction);
  Tensor y = result.y.View(over.Result(keep_dims));
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<StatisticNode>(kind, x.Detach(), result.stat, dims, correction),
           {x});
  }
  return y;
}

}  // namespace

Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return ScaledSum("sum", x, dims, keep_dims, false);
}

Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return ScaledSum("mean", x, dims, keep_dims, true);
}

Tensor Max(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return ExtremeOver(Extreme::kMax, "max", x, dims, keep_dims);
}

Tensor Min(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return ExtremeOver(Extreme::kMin, "min", x, dims, keep_dims);
}

Tensor LogSumExp(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return StatisticOver(Statistic::kLogSumExp, "log_sum_exp", x, dims, keep_dims, 0);
}

Tensor Var(const Tensor& x, const std::vector<int>& dims, bool keep_dims, double correction) {
  return StatisticOver(Statistic::kVariance, "var", x, dims, keep_dims, correction);
}

Tensor CumSum(const Tensor& x, int dim) {
  Tensor y = ops::CumSum(x.Detach(), dim);
  AttachMap(y, "cum_sum", x, [dim](const Tensor& dy) { return ops::CumSum(dy, dim, true); });
  return y;
}

Tensor ArgMax(const Tensor& x, int dim, bool keep_dim) {
  APOGEE_CHECK(x.defined(), "arg_max: x is undefined");
  const ops::Reduction over("arg_max", x.Detach(), {dim});
  return ops::ExtremeForward(Extreme::kMax, over).index.View(over.Result(keep_dim));
}

}  // namespace apogee::autograd
