// What the plugins share of precision: parsing the option, converting a model, keeping fp32
// masters.
#ifndef APOGEE_PLUGINS_PRECISION_H_
#define APOGEE_PLUGINS_PRECISION_H_

#include <string>

#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// "f32" ("fp32"), "bf16", "fp16" ("f16"), "f64". Anything else appends a line to `errors`.
DType ParsePrecision(const std::string& precision, std::string& errors);

// Converts the model's parameters to `dtype` and, for bf16 and f16, gives the optimizer f32 masters
// made from the values before rounding and asks for f32 gradients. Throws Error before anything has
// changed when a parameter already has a gradient or optimizer state in another precision.
void ApplyPrecision(DType dtype, nn::Module& model, optim::Optimizer& optimizer);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PRECISION_H_
