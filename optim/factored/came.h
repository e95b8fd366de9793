// SPDX-License-Identifier: Apache-2.0

// CAME (Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization", ACL 2023), as
// the authors' class.
//
//   optim::Came optimizer(model.Parameters(), {.lr = 2e-4, .weight_decay = 0.01});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// The last two dims are rows and columns, earlier dims are a batch of matrices:
//   R  = betas[1] R + (1 - betas[1]) (mean of g^2 over each row + eps[0])
//   C  = betas[1] C + (1 - betas[1]) (mean of g^2 over each column + eps[0])
//   u  = g / sqrt(R / mean(R)) / sqrt(C)
//   u  = u / max(1, rms(u) / clip_threshold)
//   m  = betas[0] m + (1 - betas[0]) u
//   RR = betas[2] RR + (1 - betas[2]) (mean of (u - m)^2 over each row + eps[1])
//   RC = betas[2] RC + (1 - betas[2]) (mean of (u - m)^2 over each column + eps[1])
//   w -= lr * weight_decay * w
//   w -= lr * m / sqrt(RR / mean(RR)) / sqrt(RC)
// Vectors and scalars keep V per element instead of R and C, and have no residual: w -= lr * m.
//
// There is no bias correction: all averages start at zero, and the factor of the residual is not
// clipped. The first steps of a matrix are therefore large, with the default betas an rms near
// 11 lr. Warm the rate up.
//
// States of a matrix [H, W]: exp_avg, 4 bytes per element, and exp_avg_sq_row, exp_avg_sq_col,
// exp_avg_res_row, exp_avg_res_col, together 8 (H + W) bytes. Others: exp_avg and exp_avg_sq, 8
// bytes per element. Twice that for f64.
#ifndef APOGEE_OPTIM_FACTORED_CAME_H_
#define APOGEE_OPTIM_FACTORED_CAME_H_

#include <array>
#include <memory>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

class FactoredWork;

struct CameOptions {
  double lr = 2e-4;
  std::array<double, 2> eps = {1e-30, 1e-16};
  double clip_threshold = 1;
  std::array<double, 3> betas = {0.9, 0.999, 0.9999};
  double weight_decay = 0;  // decoupled

  static std::vector<OptionField<CameOptions>> Fields();
};

class CameRule : public RuleOf<CameOptions> {
 public:
  static constexpr const char* kName = "came";
  explicit CameRule(std::vector<CameOptions> groups);
  ~CameRule() override;

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .num_stat_phases = 3};
  }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  enum class Moment { kSquare, kResidual };
  class Sums;
  // Computes the row and column factors of one moment from its totals. `store` and `gate`: see
  // FactorArgs.
  void ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params, size_t first,
                      bool store, const Sums& sums, const StepGate* gate = nullptr);
  // Computes the statistics of a phase.
  void ComputePhase(int phase, int group, std::span<const ActiveParam> params, size_t first,
                    const StepDecision& decision, const Sums& sums);

  std::unique_ptr<FactoredWork> square_, residual_;
};
using Came = OptimizerOf<CameRule>;
extern template class OptimizerOf<CameRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_CAME_H_
