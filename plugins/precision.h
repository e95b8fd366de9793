// SPDX-License-Identifier: Apache-2.0

// Helpers of the plugins: they check options, convert a model's precision, and give the
// optimizer fp32 masters.
//
//   const PrecisionPolicy policy(training, model);
//   CheckPrecision(policy, optimizer);
//   ApplyPrecision(policy, model, optimizer);
#ifndef APOGEE_PLUGINS_PRECISION_H_
#define APOGEE_PLUGINS_PRECISION_H_

#include <optional>
#include <set>
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

// The dtypes of a model's parameters and of its residual stream.
class PrecisionPolicy {
 public:
  // As the options say (precision, f32_residual, keep_f32). Throws Error that names every pattern
  // of keep_f32 that no module with parameters matches.
  PrecisionPolicy(const TrainingOptions& training, nn::Module& model);
  // All parameters have `dtype`; the residual stream is f32 if that has 16 bits.
  PrecisionPolicy(DType dtype)  // NOLINT(google-explicit-constructor)
      : dtype_(dtype), residual_(NeedsMasters(dtype) ? std::optional(DType::kF32) : std::nullopt) {}

  // The dtype of the parameters that are not kept in f32.
  DType dtype() const { return dtype_; }
  // The bytes of quantized weights stay what they are.
  DType Of(const autograd::Parameter& parameter) const {
    return IsFloat(parameter.dtype()) ? ValueOf(parameter) : parameter.dtype();
  }
  // The same of what a quantized weight's bytes stand for.
  DType ValueOf(const autograd::Parameter& parameter) const {
    return kept_.contains(&parameter) ? DType::kF32 : dtype_;
  }
  // Nothing for f32 and f64: the stream has the dtype of its addends.
  std::optional<DType> residual() const { return residual_; }

 private:
  DType dtype_;
  std::optional<DType> residual_;
  std::set<const autograd::Parameter*> kept_;
};

// Throws Error if a parameter has a gradient or optimizer state of a precision other than the
// policy's.
void CheckPrecision(const PrecisionPolicy& policy, optim::Optimizer& optimizer);

// Casts the value to `dtype` and, if the dtype needs masters, asks for f32 gradients.
void ConvertParameter(DType dtype, autograd::Parameter& parameter);

// Sets the dtypes of the residual stream in all modules, and of the values of quantized weights.
void SetComputeDTypes(const PrecisionPolicy& policy, nn::Module& model);

// Converts the model's parameters and, for bf16 and f16, gives the optimizer f32 masters made from
// the values before rounding and asks for f32 gradients. Calls SetComputeDTypes. Throws Error
// before anything has changed when a parameter already has a gradient or optimizer state in another
// precision.
void ApplyPrecision(const PrecisionPolicy& policy, nn::Module& model, optim::Optimizer& optimizer);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PRECISION_H_
