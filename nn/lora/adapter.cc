// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/lora/adapter.h"

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn {
namespace {

// W + scale * B A, [out, in].
Tensor Sum(const LoraFactors& factors, const AdaptedWeight& base) {
  const autograd::NoGradGuard no_grad;
  const Tensor weight = base.weight.value();
  const DType wide = ComputeDType(weight.dtype());
  const Tensor out_in =
      base.layout == autograd::WeightLayout::kOutIn ? weight : weight.Transpose(0, 1);
  const Tensor a = factors.a->value().To(wide), b = factors.b->value().To(wide);
  return autograd::Add(out_in.Contiguous().To(wide),
                       autograd::Scale(autograd::MatMul(b, a), factors.scale));
}

// magnitude / the norms of the rows of `sum`, which are constants. [out]
Tensor Gain(const LoraFactors& factors, const Tensor& sum, const AdapterOps& ops) {
  Tensor norms;
  {
    const autograd::NoGradGuard no_grad;
    const Tensor squares = autograd::Sum(autograd::Square(sum), {1});
    if (ops.sum_squares) ops.sum_squares(squares);
    norms = autograd::Sqrt(squares);
  }
  return autograd::Div(autograd::Cast(factors.magnitude->value(), sum.dtype()), norms);
}

}  // namespace

Tensor WithAdapter(const Tensor& x, const Tensor& product, const LoraFactors& factors,
                   const AdaptedWeight& base, const AdapterOps& ops, bool training,
                   Generator& generator) {
  const DType dtype = x.dtype(), wide = product.dtype();
  const Tensor dropped =
      training ? autograd::Dropout(x, factors.dropout, generator, ops.columns, ops.tokens) : x;
  autograd::LinearOptions options{.out_dtype = wide};
  if (ops.wide_input_grad) options.input_grad_dtype = wide;
  const Tensor a = ops.share ? ops.share(factors.a->value()) : factors.a->value();
  Tensor low = autograd::Linear(dropped, a, {}, options);
  if (ops.sum) low = ops.sum(low);
  low = autograd::Cast(autograd::Scale(low, factors.scale), dtype);
  const Tensor own = autograd::Linear(low, factors.b->value(), {}, {.out_dtype = wide});
  const Tensor y = autograd::Add(product, own);
  if (factors.magnitude == nullptr) return y;
  return autograd::Mul(y, Gain(factors, Sum(factors, base), ops));
}

Tensor RowNorms(const LoraFactors& factors, const AdaptedWeight& base) {
  const autograd::NoGradGuard no_grad;
  const Tensor sum = Sum(factors, base);
  return autograd::Sqrt(autograd::Sum(autograd::Square(sum), {1})).To(base.weight.dtype());
}

Tensor MergedWeight(const LoraFactors& factors, const AdaptedWeight& base) {
  const autograd::NoGradGuard no_grad;
  const Tensor sum = Sum(factors, base);
  if (factors.magnitude == nullptr) return sum;
  const Tensor gain = Gain(factors, sum, {});
  return autograd::Mul(sum, gain.View({gain.numel(), 1}));
}

}  // namespace apogee::nn
