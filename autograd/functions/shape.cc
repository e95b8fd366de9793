// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/shape.h"

#include "apogee/autograd/node.h"

namespace apogee::autograd {

Tensor View(const Tensor& x, const Shape& shape) {
  Tensor y = x.Detach().View(shape);
  AttachMap(y, "view", x,
            [from = x.shape()](const Tensor& dy) { return dy.Contiguous().View(from); });
  return y;
}

Tensor Transpose(const Tensor& x, int dim0, int dim1) {
  Tensor y = x.Detach().Transpose(dim0, dim1);
  AttachMap(y, "transpose", x,
            [dim0, dim1](const Tensor& dy) { return dy.Transpose(dim0, dim1).Contiguous(); });
  return y;
}

Tensor Slice(const Tensor& x, int dim, int64_t start, int64_t length) {
  Tensor y = x.Detach().Slice(dim, start, length);
  AttachMap(y, "slice", x,
            [shape = x.shape(), dim = x.shape().Normalize(dim), start](const Tensor& dy) {
              Tensor dx = Tensor::Zeros(shape, dy.dtype(), dy.context());
              dx.Slice(dim, start, dy.size(dim)).CopyFrom(dy);
              return dx;
            });
  return y;
}

Tensor Contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = x.Detach().Contiguous();
  AttachMap(y, "contiguous", x, [](Tensor dy) { return dy; });
  return y;
}

}  // namespace apogee::autograd
