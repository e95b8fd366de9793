// SPDX-License-Identifier: Apache-2.0

// Helpers of the plugins: they check options, convert a model's precision, and give the
// optimizer fp32 masters.
#ifndef APOGEE_PLUGINS_PRECISION_H_
#define APOGEE_PLUGINS_PRECISION_H_

#include <string>

#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

// Appends a line to `errors` for every wrong option; LossScaler checks its own.
void CheckTrainingOptions(const TrainingOptions& training, std::string& errors);

// Throws Error if the optimizer's update is not known to be exact on shards of parameters.
void CheckShardable(const std::string& plugin, const optim::Optimizer& optimizer);
// Throws Error if the optimizer needs each rank's own gradients (optim/core/local_gradients.h).
void CheckTakesMeans(const std::string& plugin, const optim::Optimizer& optimizer);

// Whether weights of this dtype need f32 masters.
inline bool NeedsMasters(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// Throws Error if a parameter has a gradient or optimizer state of a precision other than `dtype`.
void CheckPrecision(DType dtype, optim::Optimizer& optimizer);

// Casts the value to `dtype` and, if the dtype needs masters, asks for f32 gradients.
void ConvertParameter(DType dtype, autograd::Parameter& parameter);

// Converts the model's parameters to `dtype` and, for bf16 and f16, gives the optimizer f32 masters
// made from the values before rounding and asks for f32 gradients. Throws Error before anything has
// changed when a parameter already has a gradient or optimizer state in another precision.
void ApplyPrecision(DType dtype, nn::Module& model, optim::Optimizer& optimizer);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PRECISION_H_
