// SPDX-License-Identifier: Apache-2.0

// CAME (Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization", ACL 2023), as
// the authors' class.
//
//   optim::Came optimizer(model.Parameters(), {.lr = 2e-4, .weight_decay = 0.01});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// Means over the last two dimensions (others are a batch), no bias correction:
//   R, C: averages with betas[1] of the means of g^2 + eps[0] over rows and columns
//   u = g / sqrt(R / mean(R)) / sqrt(C);  u /= max(1, rms(u) / clip_threshold)
//   m = betas[0] m + (1 - betas[0]) u
//   RR, RC: averages with betas[2] of the means of (u - m)^2 + eps[1]
//   w -= lr * weight_decay * w;  w -= lr * m / sqrt(RR / mean(RR)) / sqrt(RC)
// Vectors and scalars: V per element in place of R and C, and the step is m, without confidence.
// States of a matrix [H, W]: exp_avg, 4 bytes per element, and exp_avg_sq_row, exp_avg_sq_col,
// exp_avg_res_row, exp_avg_res_col, 8 (H + W) bytes; else exp_avg and exp_avg_sq. f64: twice that.
//
// The averages start at zero and the residual's is not clipped, so the first steps of a matrix are
// large: with the default betas the first has an rms near 11 lr. Warm the rate up.
#ifndef APOGEE_OPTIM_CAME_H_
#define APOGEE_OPTIM_CAME_H_

#include <array>

#include "apogee/optim/factored.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct CameOptions {
  double lr = 2e-4;
  std::array<double, 2> eps = {1e-30, 1e-16};
  double clip_threshold = 1;
  std::array<double, 3> betas = {0.9, 0.999, 0.9999};
  double weight_decay = 0;  // decoupled

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<CameOptions>> Fields();
};
extern template class TypedOptimizer<CameOptions>;

class Came : public TypedOptimizer<CameOptions> {
 public:
  Came(std::vector<autograd::ParameterPtr> params, const CameOptions& options)
      : Came({{std::move(params), options}}) {}
  explicit Came(std::vector<ParamGroup<CameOptions>> groups)
      : TypedOptimizer("came", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const CameOptions& options) const override;
  int num_stat_phases() const override { return 3; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  enum class Moment { kSquare, kResidual };
  // The factors of one moment from its totals; `store` and `gate` as in FactorArgs.
  void ComputeFactors(Moment moment, int group, std::span<const ActiveParam> params, size_t first,
                      bool store, const StatBuffer& totals, const StepGate* gate = nullptr);

  FactoredWork square_, residual_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CAME_H_
