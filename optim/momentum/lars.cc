// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lars.h"

#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

// Runs `kernel` on parameters of one group. `first`: the entry of the first one in `sums`.
void Run(KernelSlot<LarsArgs> OptimKernels::*kernel, const LarsOptions& o,
         std::span<const ActiveParam> params, size_t first, const StepDecision& decision,
         const StatBuffer& sums) {
  RunKernel(params, kernel,
            LarsArgs{{},
                     sums.dtype(),
                     decision.grad_scale(),
                     o.lr,
                     o.momentum,
                     o.weight_decay,
                     o.trust_coefficient,
                     o.eps,
                     o.nesterov,
                     {}},
            [&](const ActiveParam& param) {
              const ParamView& view = *param.view;
              LarsChunk chunk = MakeUpdateChunk<LarsChunk>(param);
              chunk.sums = SumsAt(sums, first + static_cast<size_t>(&param - params.data()));
              chunk.trusted = !(o.matrices_only && view.layout().logical_shape().rank() < 2);
              if (o.momentum != 0) chunk.momentum_buffer = view.state("momentum_buffer").raw();
              return chunk;
            });
}

}  // namespace

std::vector<OptionField<LarsOptions>> LarsOptions::Fields() {
  using O = LarsOptions;
  return {
      {"lr", &O::lr, OptionCheck::kAtLeastZero, "learning rate"},
      {"momentum", &O::momentum, OptionCheck::kAtLeastZero, "decay rate of the buffer; 0: none"},
      {"weight_decay", &O::weight_decay, OptionCheck::kAtLeastZero, "L2, inside the ratio"},
      {"trust_coefficient", &O::trust_coefficient, OptionCheck::kPositive,
       "size of an update relative to that of the weights"},
      {"eps", &O::eps, OptionCheck::kAtLeastZero, "added to the divisor of the ratio"},
      {"nesterov", &O::nesterov, {}, "looks ahead; needs momentum"},
      {"matrices_only", &O::matrices_only, {}, "ratio 1 for vectors and scalars"}};
}

void LarsOptions::Check(OptionProblems& problems) const {
  if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
}

void LarsRule::DeclareStats(int, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, 2);
}

std::string LarsRule::ComputeStats(int, const RuleStep& step, StatBuffer& buffer) {
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    Run(&OptimKernels::lars_sums, options(group), params, first, step.decision, buffer);
  });
  return "";
}

void LarsRule::Update(const RuleStep& step) {
  const StatBuffer& sums = step.totals[0];
  Run(&OptimKernels::lars, options(step.group), step.params, EntryOf(sums, step.params[0]),
      step.decision, sums);
}

template class OptimizerOf<LarsRule>;

}  // namespace apogee::optim
