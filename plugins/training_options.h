// SPDX-License-Identifier: Apache-2.0

// TrainingOptions: the options that all plugins share. A program can change its plugin and keep
// them.
//
//   const TrainingOptions training{.precision = Precision::kBf16, .max_norm = 1.0};
//   DdpPlugin plugin(world.group(), training);
//   LowLevelZeroPlugin zero(world.group(), training, {.stage = 2});
//   const absl::StatusOr<Precision> precision = ParsePrecision(flag);   // of a command line
//
// A plugin's constructor checks the options and throws Error that lists every wrong one.
#ifndef APOGEE_PLUGINS_TRAINING_OPTIONS_H_
#define APOGEE_PLUGINS_TRAINING_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/dtype.h"
#include "apogee/core/status.h"
#include "apogee/optim/step/loss_scaler.h"

namespace apogee {

// kBf16 and kFp16 have fp32 masters and gradients, and an f32 residual stream
// (TrainingOptions::f32_residual); kFp16 also has a dynamic loss scale.
enum class Precision { kF32, kBf16, kFp16, kF64 };

// "f32", "bf16", "fp16", "f64".
const char* Name(Precision precision);
// Reads these texts, "fp32" and "f16".
absl::StatusOr<Precision> ParsePrecision(const std::string& text);
// The dtype of parameters and of activations outside the residual stream.
DType DTypeOf(Precision precision);

struct TrainingOptions {
  Precision precision = Precision::kF32;
  // Under kBf16 and kFp16, whether the residual stream (nn::Module::Residual) is f32. It is under
  // PyTorch's autocast, and without it training is further from that in f64. It takes 2 bytes more
  // per element of the activations that are part of it. Other precisions: no effect.
  bool f32_residual = true;
  // Under kBf16 and kFp16, shell patterns of the modules that stay in f32, parameters and
  // computation: {"*.ln_*", "*.wpe"}. Layers cast their inputs (nn::CastInput). boost throws
  // Error for a pattern that no module with parameters matches; a tied parameter is its owner's.
  std::vector<std::string> keep_f32 = {};
  // Clip the global L2 norm of the averaged gradients to this. 0: use the optimizer's step options.
  double max_norm = 0;
  // Gradients, and parameters that are sharded, travel in buckets of about this size.
  int64_t bucket_bytes = 25 << 20;
  // Reduce buckets while backward is still running.
  bool overlap = true;
  // For kFp16.
  optim::LossScalerOptions loss_scaler = {};
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_TRAINING_OPTIONS_H_
