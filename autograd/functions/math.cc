// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::autograd {
namespace {

class UnaryNode : public Node {
 public:
  UnaryNode(UnaryOp op, const char* name, const Tensor& saved, double first, double second)
      : op_(op), name_(name), saved_(saved), first_(first), second_(second) {}
  const char* name() const override { return name_; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::UnaryBackward(op_, saved_.Take(context), std::move(grads[0]), first_, second_)};
  }
  void ReleaseSaved() override { saved_.Reset(); }

 private:
  UnaryOp op_;
  const char* name_;
  SavedTensor saved_;
  double first_, second_;
};

Tensor Unary(UnaryOp op, const char* name, const Tensor& x, double first = 0, double second = 0) {
  APOGEE_CHECK(x.defined(), name, ": x is undefined");
  Tensor y = ops::UnaryForward(op, x, first, second);
  if (NeedsGrad({x})) {
    const Tensor saved = ops::SavesResult(op) ? y : x.Detach().Contiguous();
    Attach(y, std::make_shared<UnaryNode>(op, name, saved, first, second), {x});
  }
  return y;
}

class WhereNode : public Node {
 public:
  WhereNode(const Tensor& mask, const Shape& a, const Shape& b) : mask_(mask), a_(a), b_(b) {}
  const char* name() const override { return "where"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor mask = mask_.Take(context);
    const Tensor nothing = Tensor::Zeros({}, grads[0].dtype(), grads[0].context());
    return {wants(0) ? ops::SumTo(ops::Where(mask, grads[0], nothing), a_) : Tensor(),
            wants(1) ? ops::SumTo(ops::Where(mask, nothing, grads[0]), b_) : Tensor()};
  }
  void ReleaseSaved() override { mask_.Reset(); }

 private:
  SavedTensor mask_;
  Shape a_, b_;
};

}  // namespace

Tensor Exp(const Tensor& x) { return Unary(UnaryOp::kExp, "exp", x); }
Tensor Log(const Tensor& x) { return Unary(UnaryOp::kLog, "log", x); }
Tensor Log1p(const Tensor& x) { return Unary(UnaryOp::kLog1p, "log1p", x); }
Tensor Sqrt(const Tensor& x) { return Unary(UnaryOp::kSqrt, "sqrt", x); }
Tensor Rsqrt(const Tensor& x) { return Unary(UnaryOp::kRsqrt, "rsqrt", x); }
Tensor Abs(const Tensor& x) { return Unary(UnaryOp::kAbs, "abs", x); }
Tensor Square(const Tensor& x) { return Unary(UnaryOp::kSquare, "square", x); }
Tensor Softplus(const Tensor& x) { return Unary(UnaryOp::kSoftplus, "softplus", x); }

Tensor Pow(const Tensor& x, double exponent) {
  if (exponent == 1) return Scale(x, 1);
  if (exponent == 2) return Square(x);
  if (exponent == 0.5) return Sqrt(x);
  if (exponent == -0.5) return Rsqrt(x);
  return Unary(UnaryOp::kPower, "pow", x, exponent);
}

Tensor Clamp(const Tensor& x, double low, double high) {
  APOGEE_CHECK(low <= high, "clamp: needs low <= high, got [", low, ", ", high, "]");
  return Unary(UnaryOp::kClamp, "clamp", x, low, high);
}

Tensor SoftCap(const Tensor& x, double cap) {
  APOGEE_CHECK(cap > 0 && std::isfinite(cap), "soft_cap: the cap must be above 0 and finite, got ",
               cap);
  return Unary(UnaryOp::kSoftCap, "soft_cap", x, cap);
}

Tensor Where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  Tensor y = ops::Where(mask, a, b);
  if (NeedsGrad({a, b})) {
    Attach(y, std::make_shared<WhereNode>(mask.Detach(), a.shape(), b.shape()), {a, b});
  }
  return y;
}

Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value) {
  APOGEE_CHECK(x.defined(), "masked_fill: x is undefined");
  return Where(mask, Tensor::Full({}, x.dtype(), value, x.context()), x);
}

}  // namespace apogee::autograd
