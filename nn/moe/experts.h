// SPDX-License-Identifier: Apache-2.0

// Experts: gated MLPs side by side. Each expert has matrices of its own; the rows of all of them
// are computed by grouped products. Private to nn/moe.
//
//   auto experts = std::make_shared<Experts>(options);
//   Tensor y = experts->Run(rows, counts);      // rows [R, hidden_size], sorted by expert
//
// Parameters of expert 3: "3.gate_proj.weight" and "3.up_proj.weight" [intermediate, hidden_size],
// "3.down_proj.weight" [hidden_size, intermediate].
#ifndef APOGEE_NN_MOE_EXPERTS_H_
#define APOGEE_NN_MOE_EXPERTS_H_

#include <string>
#include <vector>

#include "apogee/nn/moe/moe_config.h"

namespace apogee::nn {

struct ExpertsOptions {
  int64_t num_experts = 0, hidden_size = 0, intermediate_size = 0;
  Activation activation = Activation::kSilu;
  MoeNames names = MoeNames();
  Init init = {}, residual_init = {};  // the latter of down_proj
};

class Experts : public Module {
 public:
  explicit Experts(const ExpertsOptions& options);
  // The result is f32, or f64 for f64: the weighted sum over a token's experts rounds once.
  Tensor Run(const Tensor& rows, const std::vector<int64_t>& counts);
  // Called by Run. Tensor parallelism calls it with matrices of which this rank has some rows
  // (gate, up) and columns (down): the result is an addend then.
  Tensor Forward(const Tensor& rows) override;
  struct Matrices {
    std::vector<ParameterPtr> gate, up, down;  // by expert
  };
  const Matrices& matrices() const { return matrices_; }
  // Rows by expert, in the running forward.
  const std::vector<int64_t>& counts() const { return counts_; }
  // The results of counts.size() experts from `first` on, whose rows these are.
  Tensor Compute(const Tensor& rows, const std::vector<int64_t>& counts, size_t first) const;

 private:
  Activation activation_;
  Matrices matrices_;
  std::vector<int64_t> counts_;  // of the running forward
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MOE_EXPERTS_H_
