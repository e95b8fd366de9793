// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/arithmetic.h"

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

// Sums a gradient over the leading dims that an operand of `rank` dims was broadcast over.
Tensor Unbroadcast(const Tensor& grad, int rank) {
  return grad.rank() == rank ? grad : ops::SumLeading(grad, rank, grad.dtype());
}

class AddNode : public Node {
 public:
  AddNode(double sign, int b_rank) : sign_(sign), b_rank_(b_rank) {}
  const char* name() const override { return "add"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    Tensor db;
    if (wants(1)) {
      db = Unbroadcast(grads[0], b_rank_);
      if (sign_ != 1) db = ops::Scale(db, sign_);
    }
    return {wants(0) ? grads[0] : Tensor(), db};
  }

 private:
  double sign_;
  int b_rank_;
};

class MulNode : public Node {
 public:
  MulNode(const Tensor& a, const Tensor& b) : a_(a), b_(b) {}
  const char* name() const override { return "mul"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor a = a_.Take(context), b = b_.Take(context);
    return {wants(0) ? ops::Mul(grads[0], b) : Tensor(),
            wants(1) ? Unbroadcast(ops::Mul(grads[0], a), b.rank()) : Tensor()};
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
  DivNode(const Tensor& b, const Tensor& y) : b_(b), y_(y) {}
  const char* name() const override { return "div"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor b = b_.Take(context), y = y_.Take(context);
    const Tensor da = ops::Div(grads[0], b);
    Tensor db;
    if (wants(1)) db = Unbroadcast(ops::Scale(ops::Mul(da, y), -1), b.rank());
    return {da, db};
  }
  void ReleaseSaved() override {
    b_.Reset();
    y_.Reset();
  }

 private:
  SavedTensor b_, y_;
};

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
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<AddNode>(1, b.rank()), {a, b});
  return y;
}

Tensor Sub(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Sub(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<AddNode>(-1, b.rank()), {a, b});
  return y;
}

Tensor Mul(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Mul(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<MulNode>(a, b), {a, b});
  return y;
}

Tensor Div(const Tensor& a, const Tensor& b) {
  Tensor y = ops::Div(a, b);
  if (NeedsGrad({a, b})) Attach(y, std::make_shared<DivNode>(b, y), {a, b});
  return y;
}

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
  AttachMap(y, "cast", x, [dtype = x.dtype()](const Tensor& dy) { return dy.To(dtype); });
  return y;
}

}  // namespace apogee::autograd
