// SPDX-License-Identifier: Apache-2.0

// Weights in 4 bits as bitsandbytes writes them (nf4): "X.weight" u8, "X.weight.absmax",
// "X.weight.quant_state.bitsandbytes__nf4" and others. LoadPretrained calls this. Internal.
//
//   APOGEE_ASSIGN_OR_RETURN(const auto found, FindCodes(model, weights, "folder"));
//   TakeCodes(found);                                  // the model has the codes of the files
#ifndef APOGEE_BOOSTER_QUANTIZED_QUANTIZED_FILES_H_
#define APOGEE_BOOSTER_QUANTIZED_QUANTIZED_FILES_H_

#include <string>
#include <vector>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/nn/module.h"

namespace apogee {

// A weight of the model, with the codes that files have of it.
struct WeightInCodes {
  nn::Module* owner;
  autograd::ParameterPtr weight;
  bool nested;
  Tensor bytes;
};
// Takes their tensors out of `weights`. Nothing for files without codes. InvalidArgument lists what
// does not fit.
absl::StatusOr<std::vector<WeightInCodes>> FindCodes(nn::Module& model,
                                                     checkpoint::HfWeights& weights,
                                                     const std::string& dir);
// Quantizes these weights, with these codes.
void TakeCodes(const std::vector<WeightInCodes>& found);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_QUANTIZED_QUANTIZED_FILES_H_
