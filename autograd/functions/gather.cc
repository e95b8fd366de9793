// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/gather.h"

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/node.h"

namespace apogee::autograd {
namespace {

// source, added up by index into a tensor that has `size` elements along `dim`.
Tensor Scatter(const Tensor& source, int dim, const Tensor& index, int64_t size) {
  Tensor y = ops::ScatterAdd(source.Detach(), dim, index, size);
  AttachMap(y, "scatter_add", source,
            [dim, index](const Tensor& dy) { return ops::Gather(dy, dim, index); });
  return y;
}

}  // namespace

Tensor Gather(const Tensor& x, int dim, const Tensor& index) {
  Tensor y = ops::Gather(x, dim, index);
  AttachMap(y, "gather", x, [dim, index, size = x.size(dim)](const Tensor& dy) {
    return ops::ScatterAdd(dy, dim, index, size);
  });
  return y;
}

Tensor IndexSelect(const Tensor& x, int dim, const Tensor& ids) {
  APOGEE_CHECK(x.defined(), "index_select: x is undefined");
  return Gather(x, dim, ops::IndexOfIds(ids, x.shape().Normalize(dim), x.rank()));
}

Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  APOGEE_CHECK(x.defined() && source.defined(), "scatter_add: ", x.defined() ? "the source" : "x",
               " is undefined");
  Shape shape = source.shape();
  if (shape.rank() == x.rank()) shape.Set(dim, x.size(dim));
  APOGEE_CHECK(shape == x.shape(), "scatter_add: the source ", source.shape(),
               " must have the shape of x ", x.shape(), ", except along dim ", dim);
  return Add(x, Scatter(source, dim, index, x.size(dim)));
}

}  // namespace apogee::autograd
