// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/lora/adapter.h"

#include <algorithm>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/init.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn {
namespace {

// W + scale * B A, [out, in].
Tensor Sum(const LoraFactors& factors, const AdaptedWeight& base) {
  const autograd::NoGradGuard no_grad;
  const Tensor weight = base.weight.value().Detach();
  const DType wide = ComputeDType(weight.dtype());
  const Tensor out_in =
      base.layout == autograd::WeightLayout::kOutIn ? weight : weight.Transpose(0, 1);
  const Tensor a = factors.a->value().Detach().To(wide), b = factors.b->value().Detach().To(wide);
  return autograd::Add(out_in.Contiguous().To(wide),
                       autograd::Scale(autograd::MatMul(b, a), factors.scale));
}

// The norms of the rows of `sum`, which are constants for gradients. [out]
Tensor NormsOf(const Tensor& sum, const AdapterOps& ops) {
  const autograd::NoGradGuard no_grad;
  const Tensor squares = autograd::Sum(autograd::Square(sum), {1});
  if (ops.sum_squares) ops.sum_squares(squares);
  return autograd::Sqrt(squares);
}

// magnitude / NormsOf(sum). [out]
Tensor Gain(const LoraFactors& factors, const Tensor& sum, const AdapterOps& ops) {
  const Tensor magnitude = autograd::Cast(factors.magnitude->value(), sum.dtype());
  return autograd::Div(magnitude, NormsOf(sum, ops));
}

}  // namespace

void Adaptable::SetActiveAdapters(const std::vector<std::string>& adapters) {
  for (LoraFactors& factors : adapters_) {
    factors.is_active = std::ranges::find(adapters, factors.adapter) != adapters.end();
  }
}

bool Adaptable::IsOnlyActive(const LoraFactors& factors) const {
  return std::ranges::none_of(adapters_, [&](const LoraFactors& other) {
    return other.is_active && other.adapter != factors.adapter;
  });
}

void GiveFirstValue(Parameter& factor, const Init& init, uint64_t seed, const Parameter& weight) {
  if (!weight.has_value()) return;
  const auto make = [shape = factor.shape(), init, key = MakeKey(seed, factor.name()),
                     dtype = weight.dtype(), context = weight.context()] {
    return FirstValue(shape, init, key, dtype, context);
  };
  if (weight.is_lazy()) {
    factor.set_lazy_value({weight.dtype(), weight.context(), make});
  } else {
    factor.set_value(make());
  }
}

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
  return NormsOf(Sum(factors, base), {}).To(base.weight.dtype());
}

Tensor MergedTable(const LoraFactors& factors, const Parameter& weight) {
  const autograd::NoGradGuard no_grad;
  const DType wide = ComputeDType(weight.dtype());
  const Tensor product =
      autograd::MatMul(factors.b->value().Detach().To(wide), factors.a->value().Detach().To(wide));
  return autograd::Add(weight.value().Detach().To(wide),
                       autograd::Scale(product.Transpose(0, 1).Contiguous(), factors.scale));
}

Tensor MergedWeight(const LoraFactors& factors, const AdaptedWeight& base) {
  const autograd::NoGradGuard no_grad;
  const Tensor sum = Sum(factors, base);
  if (factors.magnitude == nullptr) return sum;
  const Tensor gain = Gain(factors, sum, {});
  return autograd::Mul(sum, gain.View({gain.numel(), 1}));
}

}  // namespace apogee::nn
