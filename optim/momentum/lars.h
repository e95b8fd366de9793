// SPDX-License-Identifier: Apache-2.0

// LARS (You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017): SGD that
// scales the gradient of each tensor to the size of its weights.
//
//   optim::Lars optimizer(model.Parameters(), {.lr = 1.0, .momentum = 0.9, .weight_decay = 1e-4});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// Per parameter:
//   ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps), or 1 if |w| or |g| is 0
//   d = ratio (g + weight_decay w)
//   buf = momentum buf + d
//   w -= lr (nesterov ? d + momentum buf : buf)
// With momentum 0: w -= lr d. As in the paper, the ratio is inside the momentum. Norms are over the
// whole tensor, also if it is sharded; |w| is the norm of the master weights if there are any.
//
// State per element: momentum_buffer (4 bytes; 8 for f64), only with momentum.
#ifndef APOGEE_OPTIM_MOMENTUM_LARS_H_
#define APOGEE_OPTIM_MOMENTUM_LARS_H_

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct LarsOptions {
  double lr = 1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double eps = 0;
  bool nesterov = false;       // needs momentum
  bool matrices_only = false;  // ratio 1 for vectors and scalars (biases, norms)

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<LarsOptions>> Fields();
};
extern template class TypedOptimizer<LarsOptions>;

class Lars : public TypedOptimizer<LarsOptions> {
 public:
  Lars(std::vector<autograd::ParameterPtr> params, const LarsOptions& options)
      : Lars({{std::move(params), options}}) {}
  explicit Lars(std::vector<ParamGroup<LarsOptions>> groups)
      : TypedOptimizer("lars", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const LarsOptions& options) const override;
  int num_stat_phases() const override { return 1; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  enum class Pass { kSums, kUpdate };
  void RunPass(Pass pass, int group, std::span<const ActiveParam> params, size_t first,
               const StepDecision& decision, const StatBuffer& sums);
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LARS_H_
