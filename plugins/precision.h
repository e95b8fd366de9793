// SPDX-License-Identifier: Apache-2.0

// What the plugins share: parsing and checking options, converting a model's precision, keeping
// fp32 masters.
#ifndef APOGEE_PLUGINS_PRECISION_H_
#define APOGEE_PLUGINS_PRECISION_H_

#include <string>

#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// "f32" ("fp32"), "bf16", "fp16" ("f16"), "f64". Anything else appends a line to `errors`.
DType ParsePrecision(const std::string& precision, std::string& errors);

// Options of several plugins; each appends a line to `errors` where it makes no sense.
void CheckMaxNorm(double max_norm, std::string& errors);
void CheckBucketBytes(int64_t bucket_bytes, std::string& errors);

// Throws Error for an optimizer whose update is not known to be exact on shards of parameters.
void CheckShardable(const std::string& plugin, const optim::Optimizer& optimizer);
// Throws Error for an optimizer that wants each rank's own gradients (optim/local_gradients.h).
void CheckTakesMeans(const std::string& plugin, const optim::Optimizer& optimizer);

// f32 masters go with weights of this dtype.
inline bool NeedsMasters(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// Throws Error when a parameter has a gradient or optimizer state of another precision than
// `dtype`.
void CheckPrecision(DType dtype, optim::Optimizer& optimizer);

// Casts the value, unless it is of `dtype`, and asks for f32 gradients where they need it.
void ConvertParameter(DType dtype, autograd::Parameter& parameter);

// Converts the model's parameters to `dtype` and, for bf16 and f16, gives the optimizer f32 masters
// made from the values before rounding and asks for f32 gradients. Throws Error before anything has
// changed when a parameter already has a gradient or optimizer state in another precision.
void ApplyPrecision(DType dtype, nn::Module& model, optim::Optimizer& optimizer);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PRECISION_H_
