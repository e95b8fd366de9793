// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/shape.h"

#include "apogee/autograd/node.h"

namespace apogee::autograd {
namespace {

class ViewNode : public Node {
 public:
  explicit ViewNode(const Shape& shape) : shape_(shape) {}
  const char* name() const override { return "view"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    return {grads[0].Contiguous().View(shape_)};
  }

 private:
  Shape shape_;
};

class TransposeNode : public Node {
 public:
  TransposeNode(int dim0, int dim1) : dim0_(dim0), dim1_(dim1) {}
  const char* name() const override { return "transpose"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    return {grads[0].Transpose(dim0_, dim1_).Contiguous()};
  }

 private:
  int dim0_, dim1_;
};

class SliceNode : public Node {
 public:
  SliceNode(const Shape& shape, int dim, int64_t start) : shape_(shape), dim_(dim), start_(start) {}
  const char* name() const override { return "slice"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    const Tensor& dy = grads[0];
    Tensor dx = Tensor::Zeros(shape_, dy.dtype(), dy.context());
    dx.Slice(dim_, start_, dy.size(dim_)).CopyFrom(dy);
    return {dx};
  }

 private:
  Shape shape_;
  int dim_;
  int64_t start_;
};

class ContiguousNode : public Node {
 public:
  const char* name() const override { return "contiguous"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    return grads;
  }
};

}  // namespace

Tensor View(const Tensor& x, const Shape& shape) {
  Tensor y = x.Detach().View(shape);
  if (NeedsGrad({x})) Attach(y, std::make_shared<ViewNode>(x.shape()), {x});
  return y;
}

Tensor Transpose(const Tensor& x, int dim0, int dim1) {
  Tensor y = x.Detach().Transpose(dim0, dim1);
  if (NeedsGrad({x})) Attach(y, std::make_shared<TransposeNode>(dim0, dim1), {x});
  return y;
}

Tensor Slice(const Tensor& x, int dim, int64_t start, int64_t length) {
  Tensor y = x.Detach().Slice(dim, start, length);
  if (NeedsGrad({x}))
    Attach(y, std::make_shared<SliceNode>(x.shape(), x.shape().Normalize(dim), start), {x});
  return y;
}

Tensor Contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = x.Detach().Contiguous();
  if (NeedsGrad({x})) Attach(y, std::make_shared<ContiguousNode>(), {x});
  return y;
}

}  // namespace apogee::autograd
