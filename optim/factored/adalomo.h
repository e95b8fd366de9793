// SPDX-License-Identifier: Apache-2.0

// AdaLomo (Lv et al., "AdaLomo: Low-memory Optimization with Adaptive Learning Rate", ACL Findings
// 2024): LOMO with factored second moments. The size of its update is relative to that of the
// parameter.
//
//   optim::AdaLomo optimizer(model.Parameters(), {.lr = 5e-4});
//   optimizer.fused_backward(criterion(model(x), y));     // or Booster::backward
//   optimizer.step();
//
// With T the number of this step, counted from 1 for the whole group, b = 1 - T^decay_rate, and
//   g = clip_factor * clamp(grad / loss_scale, -clip_grad_value, clip_grad_value)
//   s = g^2 + eps[0]
// the update of a matrix is
//   R = b R + (1 - b) (mean of s over each row)
//   C = b C + (1 - b) (mean of s over each column)
//   u = g / sqrt(R / mean(R)) / sqrt(C)
// and of a vector or scalar
//   V = b V + (1 - b) s
//   u = g / sqrt(V)
// followed in both cases by
//   u = u / max(1, rms(u) / clip_threshold)
//   a = lr * max(eps[1], rms(w))
//   w = w - a * weight_decay * w - a * u
// A tensor of more than two dims is a batch of matrices of its last two.
//
// States: exp_avg_sq_row and exp_avg_sq_col of an H x W matrix, 4 (H + W) bytes; exp_avg_sq of a
// vector, 4 bytes per element; "step_num" of each group. Updates inside backward, see
// momentum/lomo.h.
#ifndef APOGEE_OPTIM_FACTORED_ADALOMO_H_
#define APOGEE_OPTIM_FACTORED_ADALOMO_H_

#include <array>
#include <limits>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct AdaLomoOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  std::array<double, 2> eps = {1e-30, 1e-3};  // added to g^2; lower bound of rms(w)
  double clip_threshold = 1.0;
  double decay_rate = -0.8;
  double clip_grad_value = std::numeric_limits<double>::infinity();  // infinite: no clamping

  static std::vector<OptionField<AdaLomoOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

struct AdaLomoArgs;
struct AdaLomoChunk;

class AdaLomoRule : public RuleOf<AdaLomoOptions> {
 public:
  static constexpr const char* kName = "adalomo";
  explicit AdaLomoRule(std::vector<AdaLomoOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override {
    return {
        .shards = true, .decides_on_device = true, .fused_backward = true, .num_stat_phases = 2};
  }
  absl::Status CheckGroupState(const GroupState& state, const OptionMap& options) const override;
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;
  void On(RuleEvent event) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  double Beta2(int group) const;
  // Parameters of one group; `first`: the place of the first one in the step. `store`: stores their
  // new second moments, unless `gate` says skip.
  void ComputeFactors(int group, std::span<const ActiveParam> params, size_t first, bool store,
                      const StatBuffer& totals, const StepGate* gate);
  AdaLomoArgs ArgsOf(int group, DType stats, const StepDecision& decision) const;
  AdaLomoChunk ChunkOf(const ActiveParam& param, size_t entry) const;

  std::vector<Tensor> factors_;  // of the parameters of this step; empty if not factored
};
using AdaLomo = OptimizerOf<AdaLomoRule>;
extern template class OptimizerOf<AdaLomoRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_ADALOMO_H_
