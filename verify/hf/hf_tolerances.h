// SPDX-License-Identifier: Apache-2.0

// HfTolerances: how far a replay of a recorded Hugging Face model may be off. In f32 the file's
// metadata says it for each value. In f64 it follows from the rounding of the recorded values: some
// are recorded in float64, others rounded to float32.
//
//   const HfTolerances tolerances(golden, DType::kF64);
//   comparison.Elements(x, golden.Values("grad/w"), tolerances.Gradient("w", values), "grad w");
#ifndef APOGEE_VERIFY_HF_HF_TOLERANCES_H_
#define APOGEE_VERIFY_HF_HF_TOLERANCES_H_

#include <string>
#include <vector>

#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

class HfTolerances {
 public:
  // Throws Error if the metadata has no tolerances.
  HfTolerances(const GoldenCase& golden, DType dtype);

  Tolerances Logits() const { return OfValue("logits_atol"); }
  Tolerances Loss() const { return OfValue("loss_atol"); }
  Tolerances RouterLogits() const { return OfValue("router_logits_atol"); }
  Tolerances AuxiliaryLoss() const { return OfValue("aux_loss_atol"); }
  Tolerances LossWithAuxiliary() const { return OfValue("loss_with_aux_atol"); }
  Tolerances LossCurve() const { return OfValue("loss_curve_atol"); }
  // Of tensors that are recorded in float32; `recorded` are their values.
  Tolerances Gradient(const std::string& name, const std::vector<double>& recorded) const;
  Tolerances Final(const std::string& name, const std::vector<double>& recorded) const;
  // Of a gradient, or of sums of its elements, recorded in float64. For f64 only.
  Tolerances ExactGradient(const std::vector<double>& recorded) const;

 private:
  Tolerances OfValue(const char* key) const;
  double OfParameter(const std::string& name, const char* key) const;

  bool is_f64_;
  Json tolerance_;
  double gradient_noise_ = 0;
};

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_HF_HF_TOLERANCES_H_
