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
  StatisticNode(Statistic kind, const Tensor& x, const ops::Reduction& over, const Tensor& stat,
                double correction)
      : kind_(kind), x_(x), stat_(stat), over_(over), correction_(correction) {}
  const char* name() const override {
    return kind_ == Statistic::kVariance ? "var" : "log_sum_exp";
  }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::StatisticBackward(kind_, x_.Take(context), over_, stat_.Take(context), grads[0],
                                   correction_)};
  }
  void ReleaseSaved() override {
    x_.Reset();
    stat_.Reset();
  }

 private:
  Statistic kind_;
  SavedTensor x_, stat_;
  ops::Reduction over_;
  double correction_;
};

class ExtremeNode : public Node {
 public:
  ExtremeNode(const char* name, const Tensor& index, const ops::Reduction& over)
      : name_(name), index_(index), over_(over) {}
  const char* name() const override { return name_; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::ExtremeBackward(index_.Take(context), grads[0], over_)};
  }
  void ReleaseSaved() override { index_.Reset(); }

 private:
  const char* name_;
  SavedTensor index_;
  ops::Reduction over_;
};

ops::Reduction Over(const char* name, const Tensor& x, const std::vector<int>& dims) {
  APOGEE_CHECK(x.defined(), name, ": x is undefined");
  return ops::Reduction(name, x.shape(), dims);
}

Tensor SumOver(const char* name, const Tensor& x, const std::vector<int>& dims, bool keep_dims,
               bool mean) {
  const ops::Reduction over = Over(name, x, dims);
  const double scale = mean ? 1.0 / static_cast<double>(over.reduce()) : 1;
  Tensor y = ops::Sum(x.Detach(), over, keep_dims, x.dtype(), scale);
  AttachMap(y, name, x, [scale, kept = over.Result(true), shape = x.shape()](const Tensor& dy) {
    const Tensor scaled = scale == 1 ? dy.Contiguous() : ops::Scale(dy, scale);
    return scaled.View(kept).Expand(shape).Contiguous();
  });
  return y;
}

Tensor ExtremeOver(Extreme kind, const char* name, const Tensor& x, const std::vector<int>& dims,
                   bool keep_dims) {
  const ops::Reduction over = Over(name, x, dims);
  const ops::ExtremeResult result = ops::ExtremeForward(kind, x.Detach(), over);
  Tensor y = result.y.View(over.Result(keep_dims));
  if (NeedsGrad({x})) Attach(y, std::make_shared<ExtremeNode>(name, result.index, over), {x});
  return y;
}

Tensor StatisticOver(Statistic kind, const char* name, const Tensor& x,
                     const std::vector<int>& dims, bool keep_dims, double correction) {
  const ops::Reduction over = Over(name, x, dims);
  APOGEE_CHECK(kind != Statistic::kVariance || static_cast<double>(over.reduce()) > correction,
               "var: needs more than ", correction, " elements, got ", over.reduce(),
               " in the dims of shape ", x.shape());
  const ops::StatisticResult result = ops::StatisticForward(kind, x.Detach(), over, correction);
  Tensor y = result.y.View(over.Result(keep_dims));
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<StatisticNode>(kind, x.Detach(), over, result.stat, correction),
           {x});
  }
  return y;
}

}  // namespace

Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return SumOver("sum", x, dims, keep_dims, false);
}

Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keep_dims) {
  return SumOver("mean", x, dims, keep_dims, true);
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
  const ops::Reduction over = Over("arg_max", x, {dim});
  return ops::ExtremeForward(Extreme::kMax, x.Detach(), over).index.View(over.Result(keep_dim));
}

}  // namespace apogee::autograd
