// SPDX-License-Identifier: Apache-2.0

// The parts of a replay of a recorded Hugging Face model. Only the sources of hf_*.cc need it.
//
//   HfReplay replay{folder, golden, dtype, HfTolerances(golden, dtype), comparison};
//   const Tensor logits = replay.Logits(hf);
//   autograd::Backward(nn::CrossEntropyLoss()(logits, replay.Targets(hf)));
//   CompareGradients(hf, replay);
#ifndef APOGEE_VERIFY_HF_HF_REPLAY_H_
#define APOGEE_VERIFY_HF_HF_REPLAY_H_

#include <string>
#include <vector>

#include "apogee/nn/models/hf_model.h"
#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"
#include "apogee/verify/hf/hf_tolerances.h"

namespace apogee::verify {

// "" if models of the type in the folder's config are offered, else the reason.
std::string WhyRefused(const std::string& folder);

struct HfReplay {
  std::string folder;  // with config.json and the weights
  const GoldenCase& golden;
  DType dtype;
  HfTolerances tolerances;
  Comparison& comparison;
  std::string prefix = {};  // begins the model's names and not those in the files

  // Of the recorded batch.
  Tensor Logits(const nn::HfModel& hf) const;
  // The recorded labels; shifted for a model that predicts the next token.
  Tensor Targets(const nn::HfModel& hf) const;
  std::string NameInFiles(const autograd::Parameter& parameter) const;
};

// Compares the gradients that backward has left, and makes them absent.
void CompareGradients(const nn::HfModel& hf, const HfReplay& replay);
// Compares a gradient with what is recorded of it in float64 under names that begin with `start`:
// all elements, or sums of them.
void CompareExactGradient(const std::string& start, const std::string& name,
                          const std::vector<double>& grad, const Shape& shape,
                          const HfReplay& replay);
// Of a model with a mixture of experts: compares what the routers do, and the auxiliary loss.
void CompareMixture(const nn::HfModel& hf, const HfReplay& replay);
// Trains the model as recorded: compares the losses, and the weights after the last step.
void CompareTraining(const nn::HfModel& hf, const HfReplay& replay);
// Saves the weights, loads them again and compares all values.
void CompareSaved(const nn::HfModel& hf, const HfReplay& replay);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_HF_HF_REPLAY_H_
