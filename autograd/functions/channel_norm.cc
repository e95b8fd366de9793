// SPDX-License-Identifier: Apache-2.0

#include <numeric>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

void CheckChannels(const char* norm, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  APOGEE_CHECK(x.rank() >= 2 && IsFloat(x.dtype()), norm,
               ": x must be a floating tensor [samples, channels, ..], got ", DTypeName(x.dtype()),
               " ", x.shape());
  for (const Tensor* parameter : {&weight, &bias}) {
    const bool fits = parameter->shape() == Shape{x.size(1)} && parameter->dtype() == x.dtype();
    APOGEE_CHECK(fits, norm, ": x is ", DTypeName(x.dtype()), " ", x.shape(), " with ", x.size(1),
                 " channels, weight and bias must be ", DTypeName(x.dtype()), " [", x.size(1),
                 "], got ", DTypeName(parameter->dtype()), " ", parameter->shape(),
                 "; autograd::Cast converts");
  }
}

// [C] in the form that broadcasts along the channels of x.
Tensor OfChannels(const Tensor& values, const Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.rank()) - 1, 1);
  sizes[0] = x.size(1);
  return View(values, Shape(sizes));
}

Tensor ScaleAndShift(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return Add(Mul(x, OfChannels(Cast(weight, x.dtype()), x)), OfChannels(Cast(bias, x.dtype()), x));
}

// (x - mean) is given.
Tensor NormalizeCentered(const Tensor& centered, const Tensor& var, const Tensor& weight,
                         const Tensor& bias, double eps) {
  const Tensor small = Tensor::Full({1}, var.dtype(), eps, var.context());
  const Tensor scale = Mul(Rsqrt(Add(var, small)), Cast(weight, var.dtype()));
  return ScaleAndShift(centered, scale, bias);
}

}  // namespace

Tensor GroupNorm(const Tensor& x, int64_t num_groups, const Tensor& weight, const Tensor& bias,
                 double eps) {
  CheckChannels("group norm", x, weight, bias);
  APOGEE_CHECK(num_groups >= 1 && x.size(1) % num_groups == 0, "group norm: ", x.size(1),
               " channels cannot be cut into ", num_groups, " equal groups");
  const DType dtype = ComputeDType(x.dtype());
  const int64_t rows = x.size(0) * num_groups;
  const int64_t cols = rows == 0 ? 1 : x.numel() / rows;
  const Tensor ones = Tensor::Full({cols}, dtype, 1, x.context());
  const Tensor groups = View(Contiguous(Cast(x, dtype)), {rows, cols});
  const Tensor normal = View(LayerNorm(groups, ones, Tensor(), eps), x.shape());
  return Cast(ScaleAndShift(normal, weight, bias), x.dtype());
}

BatchNormResult BatchNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                          const SumFunction& sum) {
  CheckChannels("batch norm", x, weight, bias);
  const int64_t channels = x.size(1), count = channels == 0 ? 0 : x.numel() / channels;
  APOGEE_CHECK(sum != nullptr || count >= 2, "batch norm: x ", x.shape(), " has ", count,
               " elements of each channel; their variance needs at least two");
  std::vector<int> dims(static_cast<size_t>(x.rank()) - 1);
  std::iota(dims.begin(), dims.end(), 1);
  dims[0] = 0;
  const DType dtype = ComputeDType(x.dtype());
  const auto over_batch = [&](const Tensor& part) { return sum ? sum(part) : part; };

  const Tensor wide = Cast(x, dtype);
  const Tensor own_count = Tensor::Full({1}, dtype, static_cast<double>(count), x.context());
  const Tensor sums = over_batch(Concat({Sum(wide, dims), own_count}, 0));
  BatchNormResult result;
  result.count = Slice(sums, 0, channels, 1).Detach();
  const Tensor one = Tensor::Full({1}, dtype, 1, x.context());
  const Tensor divisor = ops::Maximum(result.count, one);  // there may be no sample on any rank
  result.mean = Div(Slice(sums, 0, 0, channels), divisor);
  // Of the centred elements: a difference of two sums would lose the digits of a small variance.
  const Tensor centered = Sub(wide, OfChannels(result.mean, x));
  result.var = Div(over_batch(Sum(Square(centered), dims)), divisor);
  result.y = Cast(NormalizeCentered(centered, result.var, weight, bias, eps), x.dtype());
  return result;
}

Tensor NormalizeChannels(const Tensor& x, const Tensor& mean, const Tensor& var,
                         const Tensor& weight, const Tensor& bias, double eps) {
  CheckChannels("batch norm", x, weight, bias);
  const DType dtype = ComputeDType(x.dtype());
  const Tensor centered = Sub(Cast(x, dtype), OfChannels(Cast(mean, dtype), x));
  return Cast(NormalizeCentered(centered, Cast(var, dtype), weight, bias, eps), x.dtype());
}

}  // namespace apogee::autograd
