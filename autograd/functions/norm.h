// SPDX-License-Identifier: Apache-2.0

// Layer norm (Ba et al., 2016) and RMS norm (Zhang and Sennrich, 2019) over the last dim.
//
//   Tensor y = autograd::LayerNorm(x, weight, bias, 1e-5);
//   Tensor z = autograd::RmsNorm(x, weight, 1e-6);
//
// x [.., d], weight and bias [d], all of one dtype. The statistics are f32 (f64 for f64); the
// variance is biased. A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// bias may be undefined.
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_NORM_H_
