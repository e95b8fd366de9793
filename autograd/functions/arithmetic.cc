// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/arithmetic.h"

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::autograd {
namespace {

class AddNode : public Node {
 public:
  AddNode(double sign, const Shape& a, const Shape& b) : sign_(sign), a_(a), b_(b) {}
  const char* name() const override { return "add"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    Tensor db;
    if (wants(1)) {
      db = ops::SumTo(grads[0], b_);
      if (sign_ != 1) db = ops::Scale(db, sign_);
    }
    return {wants(0) ? ops::SumTo(grads[0], a_) : Tensor(), db};
  }

 private:
  double sign_;
  Shape a_, b_;
};

class MulNode : public Node {
 public:
  MulNode(const Tensor& a, const Tensor& b) : a_(a), b_(b) {}
  const char* name() const override { return "mul"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor a = a_.Take(context), b = b_.Take(context);
    return {wants(0) ? ops::SumTo(ops::Mul(grads[0], b), a.shape()) : Tensor(),
            wants(1) ? ops::SumTo(ops::Mul(grads[0], a), b.shape()) : Tensor()};
  }
  void ReleaseSaved() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  SavedTensor a_, b_;
};

// y = a / b: da = dy / b, db = -dy a / b^2 = -da y, with y = a / b.
class DivNode : public Node {
 public:
  DivNode(const Shape& a, const Tensor& b, const Tensor& y) : a_(a), b_(b), y_(y) {}
  const char* name() const override { return "div"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor b = b_.Take(context), y = y_.Take(context);
    const Tensor da = ops::Div(grads[0], b);
    Tensor db;
    if (wants(1)) db = ops::SumTo(ops::Scale(ops::Mul(da, y), -1), b.shape());
    return {wants(0) ? ops::SumTo(da, a_) : Tensor(), db};
  }
  void ReleaseSaved() override {
    b_.Reset();
    y_.Reset();
  }

 private:
  Shape a_;
  SavedTensor b_, y_;
};

// The larger of a and b, or the smaller.
class ChoiceNode : public Node {
 public:
  ChoiceNode(BinaryOp op, const Tensor& a, const Tensor& b) : op_(op), a_(a), b_(b) {}
  const char* name() const override { return op_ == BinaryOp::kMax ? "maximum" : "minimum"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor a = a_.Take(context), b = b_.Take(context);
    const Tensor nothing = Tensor::Zeros({}, grads[0].dtype(), grads[0].context());
    const Tensor halved = ops::Where(ops::Equal(a, b), ops::Scale(grads[0], 0.5), grads[0]);
    const auto of = [&](const Tensor& taken, const Tensor& other) {
      const bool max = op_ == BinaryOp::kMax;
      const Tensor mask = ops::LessEqual(max ? other : taken, max ? taken : other);
      return ops::SumTo(ops::Where(mask, halved, nothing), taken.shape());
    };
    return {wants(0) ? of(a, b) : Tensor(), wants(1) ? of(b, a) : Tensor()};
  }
  void ReleaseSaved() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  BinaryOp op_;
  SavedTensor a_, b_;
};

Tensor Choice(BinaryOp op, const Tensor& a, const Tensor& b) {
  Tensor y = ops::Binary(op, a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<ChoiceNode>(op, a, b), {a, b});
  return y;
}

Tensor ScaledSum(const Tensor& x, double scale) {
  Tensor y = ops::SumLeading(x, 0, x.dtype(), scale);
  AttachMap(y, "sum", x, [scale, shape = x.shape(), dtype = x.dtype()](const Tensor& dy) {
    return ops::Spread(dy, scale, shape, dtype);
  });
  return y;
}

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Add(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<AddNode>(1, a.shape(), b.shape()), {a, b});
  return y;
}

Tensor Sub(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Sub(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<AddNode>(-1, a.shape(), b.shape()), {a, b});
  return y;
}

Tensor Mul(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Mul(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<MulNode>(a, b), {a, b});
  return y;
}

Tensor Div(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Div(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<DivNode>(a.shape(), b, y), {a, b});
  return y;
}

Tensor Maximum(const Tensor& a, const Tensor& b) { return Choice(BinaryOp::kMax, a, b); }

Tensor Minimum(const Tensor& a, const Tensor& b) { return Choice(BinaryOp::kMin, a, b); }

Tensor Scale(const Tensor& x, double factor) {
  Tensor y = ops::Scale(x, factor);
  AttachMap(y, "scale", x, [factor](const Tensor& dy) { return ops::Scale(dy, factor); });
  return y;
}

Tensor Sum(const Tensor& x) { return ScaledSum(x, 1); }

Tensor Mean(const Tensor& x) { return ScaledSum(x, 1.0 / static_cast<double>(x.numel())); }

Tensor Cast(const Tensor& x, DType dtype) {
  APOGEE_CHECK(IsFloat(dtype), "cast: needs a floating dtype, got ", DTypeName(dtype));
  if (dtype == x.dtype()) return x;
  Tensor y = x.Detach().To(dtype);
  AttachMap(y, "cast", x, [dtype = GradDType(x)](const Tensor& dy) { return dy.To(dtype); });
  if (DTypeSize(x.dtype()) > DTypeSize(dtype)) SetGradDType(y, x.dtype());
  return y;
}

}  // namespace apogee::autograd
