// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/shape.h"

#include "apogee/autograd/node.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::autograd {
namespace {

class SliceNode : public Node {
 public:
  SliceNode(const Shape& shape, int dim, int64_t start) : shape_(shape), dim_(dim), start_(start) {}
  const char* name() const override { return "slice"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    Tensor dx = Tensor::Zeros(shape_, grads[0].dtype(), grads[0].context());
    dx.Slice(dim_, start_, grads[0].size(dim_)).CopyFrom(grads[0]);
    return {dx};
  }
  bool AddBackward(const Tensor& grad, Tensor& sum) override {
    if (!sum.defined()) return false;
    if (!sum.is_sole_owner() || !sum.is_contiguous()) sum = sum.Detach().Clone();
    const Tensor part = sum.Slice(dim_, start_, grad.size(dim_));
    if (part.is_contiguous()) {
      ops::Accumulate(part, grad);
    } else {
      part.CopyFrom(ops::Add(part, grad.To(part.dtype())));
    }
    return true;
  }

 private:
  Shape shape_;
  int dim_;
  int64_t start_;
};

class ConcatNode : public Node {
 public:
  ConcatNode(int dim, std::vector<int64_t> sizes) : dim_(dim), sizes_(std::move(sizes)) {}
  const char* name() const override { return "concat"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    std::vector<Tensor> parts(sizes_.size());
    int64_t start = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (wants(i)) parts[i] = grads[0].Slice(dim_, start, sizes_[i]).Clone();
      start += sizes_[i];
    }
    return parts;
  }

 private:
  int dim_;
  std::vector<int64_t> sizes_;
};

}  // namespace

Tensor View(const Tensor& x, const Shape& shape) {
  Tensor y = x.Detach().View(shape);
  AttachMap(y, "view", x,
            [from = x.shape()](const Tensor& dy) { return dy.Contiguous().View(from); });
  SetGradDType(y, GradDType(x));
  return y;
}

Tensor Transpose(const Tensor& x, int dim0, int dim1) {
  Tensor y = x.Detach().Transpose(dim0, dim1);
  AttachMap(y, "transpose", x,
            [dim0, dim1](const Tensor& dy) { return dy.Transpose(dim0, dim1).Contiguous(); });
  return y;
}

Tensor Permute(const Tensor& x, const std::vector<int>& dims) {
  Tensor y = x.Detach().Permute(dims);
  std::vector<int> back(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    back[static_cast<size_t>(x.shape().Normalize(dims[i]))] = static_cast<int>(i);
  }
  AttachMap(y, "permute", x, [back](const Tensor& dy) { return dy.Permute(back).Contiguous(); });
  return y;
}

Tensor Expand(const Tensor& x, const Shape& shape) {
  Tensor y = x.Detach().Expand(shape);
  AttachMap(y, "expand", x, [from = x.shape()](const Tensor& dy) { return ops::SumTo(dy, from); });
  return y;
}

Tensor Slice(const Tensor& x, int dim, int64_t start, int64_t length) {
  Tensor y = x.Detach().Slice(dim, start, length);
  if (NeedsGrad({x})) {
    Attach(y, std::make_shared<SliceNode>(x.shape(), x.shape().Normalize(dim), start), {x});
  }
  return y;
}

std::vector<Tensor> Split(const Tensor& x, int64_t count, int dim) {
  const int64_t size = x.size(dim);
  APOGEE_CHECK(count > 0 && size % count == 0, "split: dim ", dim, " of shape ", x.shape(),
               " does not divide into ", count, " equal parts");
  return Split(x, std::vector<int64_t>(static_cast<size_t>(count), size / count), dim);
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  APOGEE_CHECK(sum == x.size(dim), "split: the sizes add up to ", sum, ", and dim ", dim,
               " of shape ", x.shape(), " has ", x.size(dim));
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    parts.push_back(Slice(x, dim, start, size));
    start += size;
  }
  return parts;
}

Tensor Concat(const std::vector<Tensor>& tensors, int dim) {
  APOGEE_CHECK(!tensors.empty(), "concat: needs at least one tensor");
  for (const Tensor& tensor : tensors) {
    APOGEE_CHECK(tensor.defined(), "concat: tensor ", &tensor - tensors.data(), " is undefined");
  }
  const Tensor& first = tensors[0];
  dim = first.shape().Normalize(dim);
  Shape shape = first.shape();
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const Tensor& tensor : tensors) {
    ops::CheckSameDType("concat", first, tensor);
    Shape other = tensor.shape();
    if (other.rank() == shape.rank()) other.Set(dim, first.size(dim));
    APOGEE_CHECK(other == first.shape(), "concat: shapes ", first.shape(), " and ", tensor.shape(),
                 " differ in more than dim ", dim);
    sizes.push_back(tensor.size(dim));
    sum += sizes.back();
  }
  shape.Set(dim, sum);
  Tensor y = Tensor::Empty(shape, first.dtype(), first.context());
  int64_t start = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    y.Slice(dim, start, sizes[i]).CopyFrom(tensors[i].Detach());
    start += sizes[i];
  }
  if (NeedsGrad(tensors)) Attach(y, std::make_shared<ConcatNode>(dim, std::move(sizes)), tensors);
  return y;
}

Tensor Stack(const std::vector<Tensor>& tensors, int dim) {
  APOGEE_CHECK(!tensors.empty() && tensors[0].defined(), "stack: needs at least one tensor");
  const Shape& shape = tensors[0].shape();
  if (dim < 0) dim += shape.rank() + 1;
  APOGEE_CHECK(dim >= 0 && dim <= shape.rank(), "stack: no place for a new dim ", dim, " in shape ",
               shape);
  std::vector<int64_t> sizes(shape.dims().begin(), shape.dims().end());
  sizes.insert(sizes.begin() + dim, 1);
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) {
    APOGEE_CHECK(tensor.defined() && tensor.shape() == shape, "stack: shapes ", shape, " and ",
                 tensor.shape(), " differ");
    rows.push_back(View(Contiguous(tensor), Shape(sizes)));
  }
  return Concat(rows, dim);
}

Tensor Contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = x.Detach().Contiguous();
  AttachMap(y, "contiguous", x, [](Tensor dy) { return dy; });
  SetGradDType(y, GradDType(x));
  return y;
}

}  // namespace apogee::autograd
