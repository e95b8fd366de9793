// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lars.h"

#include "apogee/optim/check_options.h"
#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

std::vector<std::string> LarsOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.AtLeastZero("momentum", momentum);
  problems.AtLeastZero("weight_decay", weight_decay);
  problems.Positive("trust_coefficient", trust_coefficient);
  problems.AtLeastZero("eps", eps);
  if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
  return problems.list();
}

std::vector<OptionField<LarsOptions>> LarsOptions::Fields() {
  return {{"lr", &LarsOptions::lr},
          {"momentum", &LarsOptions::momentum},
          {"weight_decay", &LarsOptions::weight_decay},
          {"trust_coefficient", &LarsOptions::trust_coefficient},
          {"eps", &LarsOptions::eps},
          {"nesterov", &LarsOptions::nesterov},
          {"matrices_only", &LarsOptions::matrices_only}};
}

std::span<const StateSpec> Lars::StatesUnder(const ParamView&, const LarsOptions& options) const {
  static constexpr StateSpec kStates[] = {{"momentum_buffer", StateKind::kElementwise}};
  return options.momentum != 0 ? std::span<const StateSpec>(kStates) : std::span<const StateSpec>();
}

void Lars::DeclareStats(int, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) buffer.AddSums(*param.view, 2);
}

void Lars::ComputeStats(int, std::span<const ActiveParam> all, const StepDecision& decision,
                        std::span<const StatBuffer>, StatBuffer& buffer) {
  ForEachGroup(all, [&](int group, size_t first, std::span<const ActiveParam> params) {
    RunPass(Pass::kSums, group, params, first, decision, buffer);
  });
}

void Lars::RunPass(Pass pass, int group, std::span<const ActiveParam> params, size_t first,
                   const StepDecision& decision, const StatBuffer& sums) {
  const LarsOptions& o = options(group);
  const auto make_chunk = [&](const ActiveParam& param) {
    LarsChunk chunk = MakeUpdateChunk<LarsChunk>(param);
    chunk.sums = SumsAt(sums, first + static_cast<size_t>(&param - params.data()));
    chunk.trusted = !(o.matrices_only && param.view->layout().logical_shape().rank() < 2);
    if (o.momentum != 0) chunk.momentum_buffer = param.view->state("momentum_buffer").raw();
    return chunk;
  };
  ForEachComputeDType<LarsChunk>(
      params, make_chunk, [&](DType dtype, std::span<const LarsChunk> chunks) {
        const DeviceContext& context = *params[0].grad.context();
        const LarsArgs args{dtype,      sums.dtype(),   decision.grad_scale(), o.lr,
                            o.momentum, o.weight_decay, o.trust_coefficient,   o.eps,
                            o.nesterov, chunks};
        const OptimKernels& kernels = OptimKernelsFor(context);
        pass == Pass::kSums ? kernels.lars_sums(context, args) : kernels.lars(context, args);
      });
}

void Lars::Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
                  std::span<const StatBuffer> totals) {
  RunPass(Pass::kUpdate, group, params, EntryOf(totals[0], params[0]), decision, totals[0]);
}

template class TypedOptimizer<LarsOptions>;

}  // namespace apogee::optim
