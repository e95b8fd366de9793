// SPDX-License-Identifier: Apache-2.0

// Muon (Jordan et al., 2024): momentum whose matrices are made orthogonal; other tensors, and
// matrices on request, are divided by their norm. Every element of a direction depends on the whole
// tensor, which ranks may share: the momentum's parts, and its squares, are summed up as statistics
// of the step.
//
//   Muon optimizer({{.params = matrices, .options = {.lr = 0.02}},
//                   {.params = rest, .options = {.lr = 0.01, .orthogonalize = false}}});
#ifndef OUTSIDE_APP_MUON_H_
#define OUTSIDE_APP_MUON_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/apogee.h"
#include "apogee/optim/typed_optimizer.h"

namespace outside {

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  double weight_decay = 0;
  bool orthogonalize = true;  // false: Nesterov's momentum over its norm

  std::vector<std::string> Problems() const;
  static std::vector<apogee::optim::OptionField<MuonOptions>> Fields();
};

class Muon : public apogee::optim::TypedOptimizer<MuonOptions> {
 public:
  explicit Muon(std::vector<apogee::optim::ParamGroup<MuonOptions>> groups)
      : TypedOptimizer("muon", std::move(groups)) {}
  bool SupportsShards() const override { return true; }

 protected:
  std::span<const apogee::optim::StateSpec> StatesUnder(const apogee::optim::ParamView& view,
                                                        const MuonOptions& options) const override;
  int num_stat_phases() const override { return 1; }
  void DeclareStats(int phase, std::span<const apogee::optim::ActiveParam> params,
                    apogee::optim::StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const apogee::optim::ActiveParam> params,
                    const apogee::optim::StepDecision& decision,
                    std::span<const apogee::optim::StatBuffer> totals,
                    apogee::optim::StatBuffer& buffer) override;
  void Update(int group, std::span<const apogee::optim::ActiveParam> params,
              const apogee::optim::StepDecision& decision,
              std::span<const apogee::optim::StatBuffer> totals) override;

 private:
  bool IsOrthogonal(const apogee::optim::ActiveParam& param) const;
};

}  // namespace outside

#endif  // OUTSIDE_APP_MUON_H_
