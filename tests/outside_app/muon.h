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

namespace outside {

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  double weight_decay = 0;
  bool orthogonalize = true;  // false: Nesterov's momentum over its norm

  static std::vector<apogee::optim::OptionField<MuonOptions>> Fields();
};

class MuonRule : public apogee::optim::RuleOf<MuonOptions> {
 public:
  static constexpr const char* kName = "own_muon";  // the library has a "muon"
  explicit MuonRule(std::vector<MuonOptions> groups) : RuleOf(kName, std::move(groups)) {}

  apogee::optim::OptimizerTraits traits() override {
    return {.shards = true, .num_stat_phases = 1};
  }
  void DeclareStats(int phase, std::span<const apogee::optim::ActiveParam> params,
                    apogee::optim::StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const apogee::optim::RuleStep& step,
                           apogee::optim::StatBuffer& buffer) override;
  void Update(const apogee::optim::RuleStep& step) override;

 protected:
  void States(const Subject&, std::vector<apogee::optim::StateSpec>& specs) const override;

 private:
  bool IsOrthogonal(const apogee::optim::ActiveParam& param) const;
};
using Muon = apogee::optim::OptimizerOf<MuonRule>;

}  // namespace outside

#endif  // OUTSIDE_APP_MUON_H_
