// SPDX-License-Identifier: Apache-2.0

// Norms over the last dim: layer norm (Ba et al., 2016) and RMS norm (Zhang and Sennrich, 2019).
// Norms of channels: group norm (Wu and He, 2018) and batch norm (Ioffe and Szegedy, 2015).
//
//   Tensor y = autograd::LayerNorm(x, weight, bias, 1e-5);           // x [.., d], weight [d]
//   Tensor z = autograd::GroupNorm(image, 8, weight, bias, 1e-5);    // [N, C, ..], weight [C]
//
// x, weight and bias have one dtype. Layer and RMS norm also take an f32 x with a weight and bias
// of 16 bits; the result has the weight's dtype. The statistics are f32 (f64 for f64); the variance
// is biased. A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_

#include <functional>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// bias may be undefined. With `recompute`, functions that save the result keep x, which the norm
// keeps anyway, and compute the same bits from it in backward.
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                 bool recompute = false);
// x * rstd * (weight + weight_offset). The sum is in f32 (f64 for f64): weights of 16 bits that
// hold their difference from 1 (Gemma) lose nothing.
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, double weight_offset = 0,
               bool recompute = false);

// Normalises each sample over each of `num_groups` equal groups of channels, then scales and shifts
// channels. Throws Error unless num_groups divides C.
Tensor GroupNorm(const Tensor& x, int64_t num_groups, const Tensor& weight, const Tensor& bias,
                 double eps);

// The statistics have the dtype f32 (f64 for f64).
struct BatchNormResult {
  Tensor y;
  Tensor mean, var;  // [C], of the elements of each channel; var is biased. In the graph of x.
  Tensor count;      // [1], the number of elements of a channel
};
// Adds up over everything that shares the batch, for example over ranks. Differentiable.
using SumFunction = std::function<Tensor(const Tensor& x)>;

// Normalises each channel over all samples and places, then scales and shifts it. With `sum`, which
// is called twice, the statistics are those of the whole batch, of which x has some samples,
// perhaps none. Throws Error if a channel has fewer than two elements and there is no `sum`.
BatchNormResult BatchNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                          const SumFunction& sum = nullptr);
// The same with statistics that are given.
Tensor NormalizeChannels(const Tensor& x, const Tensor& mean, const Tensor& var,
                         const Tensor& weight, const Tensor& bias, double eps);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_
